// SPDX-License-Identifier: PostgreSQL
package transparency;

import jakarta.servlet.Filter;
import jakarta.servlet.FilterChain;
import jakarta.servlet.ServletException;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletResponse;
import java.io.IOException;
import java.util.List;
import java.util.Map;
import org.springframework.boot.web.error.ErrorAttributeOptions;
import org.springframework.boot.web.error.ErrorAttributeOptions.Include;
import org.springframework.boot.web.servlet.FilterRegistrationBean;
import org.springframework.boot.web.servlet.error.DefaultErrorAttributes;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.core.Ordered;
import org.springframework.core.annotation.Order;
import org.springframework.core.env.Environment;
import org.springframework.security.config.Customizer;
import org.springframework.security.config.annotation.web.builders.HttpSecurity;
import org.springframework.security.config.annotation.web.configurers.AbstractHttpConfigurer;
import org.springframework.security.core.userdetails.User;
import org.springframework.security.core.userdetails.UserDetailsService;
import org.springframework.security.provisioning.InMemoryUserDetailsManager;
import org.springframework.security.web.SecurityFilterChain;
import org.springframework.security.web.csrf.HttpSessionCsrfTokenRepository;
import org.springframework.web.context.request.WebRequest;
import org.springframework.web.cors.CorsConfiguration;
import org.springframework.web.cors.UrlBasedCorsConfigurationSource;
import org.springframework.web.filter.CorsFilter;
import org.springframework.web.filter.HiddenHttpMethodFilter;
import org.springframework.web.filter.OncePerRequestFilter;
import org.springframework.web.filter.ShallowEtagHeaderFilter;
import org.springframework.web.servlet.config.annotation.ResourceHandlerRegistry;
import org.springframework.web.servlet.config.annotation.WebMvcConfigurer;
import org.springframework.web.util.ContentCachingRequestWrapper;
import org.springframework.web.util.ContentCachingResponseWrapper;

/** Filters before and behind pgonce's, Spring Security, CORS, static files, the page about an error. Compression is Tomcat's. */
@Configuration(proxyBeanMethods = false)
class Neighbours {
    private static final int OUTSIDE = 0;
    private static final int INSIDE = Ordered.LOWEST_PRECEDENCE;

    /** What a filter does. */
    private interface Work {
        void filter(HttpServletRequest request, HttpServletResponse response, FilterChain chain) throws ServletException, IOException;
    }

    private static <F extends Filter> FilterRegistrationBean<F> registered(F filter, int order, String path) {
        FilterRegistrationBean<F> registration = new FilterRegistrationBean<>(filter);
        registration.setOrder(order);
        registration.addUrlPatterns(path);
        return registration;
    }

    private static FilterRegistrationBean<Filter> doing(Work work, int order, String path) {
        return registered(new OncePerRequestFilter() {
            @Override
            protected void doFilterInternal(HttpServletRequest request, HttpServletResponse response, FilterChain chain) throws ServletException, IOException {
                work.filter(request, response, chain);
            }

            @Override
            protected String getAlreadyFilteredAttributeName() {
                return path + order;
            }
        }, order, path);
    }

    @Bean
    FilterRegistrationBean<Filter> outer() {
        return doing((request, response, chain) -> {
            response.setHeader("X-Outer", "one");
            response.addHeader("Link", "</outer>; rel=help");
            response.setHeader("Content-Language", "de");
            chain.doFilter(request, response);
        }, OUTSIDE, "/outer");
    }

    @Bean
    FilterRegistrationBean<Filter> inner() {
        return doing((request, response, chain) -> {
            response.setHeader("X-Inner", "one");
            chain.doFilter(request, response);
        }, INSIDE, "/inner");
    }

    @Bean
    FilterRegistrationBean<Filter> reading() {
        return doing((request, response, chain) -> {
            request.getParameter("amount");
            chain.doFilter(request, response);
        }, OUTSIDE, "/read-outside");
    }

    @Bean
    FilterRegistrationBean<Filter> caching() {
        return doing((request, response, chain) -> {
            ContentCachingRequestWrapper asked = new ContentCachingRequestWrapper(request);
            ContentCachingResponseWrapper answer = new ContentCachingResponseWrapper(response);
            chain.doFilter(asked, answer);
            answer.setHeader("X-Cached", asked.getContentAsByteArray().length + " " + answer.getContentSize());
            answer.copyBodyToResponse();
        }, INSIDE, "/cached");
    }

    @Bean
    FilterRegistrationBean<ShallowEtagHeaderFilter> etags() {
        return registered(new ShallowEtagHeaderFilter(), OUTSIDE, "/etag");
    }

    @Bean
    FilterRegistrationBean<HiddenHttpMethodFilter> hiddenMethods() {
        return registered(new HiddenHttpMethodFilter(), OUTSIDE, "/replaced");
    }

    @Bean
    FilterRegistrationBean<CorsFilter> cors() {
        CorsConfiguration allowed = new CorsConfiguration();
        allowed.setAllowedOrigins(List.of("https://shop.example"));
        allowed.setAllowCredentials(true);
        allowed.setAllowedMethods(List.of("GET", "POST"));
        allowed.setAllowedHeaders(List.of("Idempotency-Key", "Content-Type"));
        allowed.setExposedHeaders(List.of("Idempotency-Replayed"));
        UrlBasedCorsConfigurationSource source = new UrlBasedCorsConfigurationSource();
        source.registerCorsConfiguration("/cors", allowed);
        return registered(new CorsFilter(source), Ordered.HIGHEST_PRECEDENCE + 100, "/cors");
    }

    @Bean
    UserDetailsService users() {
        return new InMemoryUserDetailsManager(User.withUsername("u").password("{noop}p").roles("USER").build());
    }

    @Bean
    @Order(1)
    SecurityFilterChain authenticated(HttpSecurity http) throws Exception {
        return http.securityMatcher("/auth").csrf(AbstractHttpConfigurer::disable).requestCache(AbstractHttpConfigurer::disable).httpBasic(basic -> basic.realmName("x"))
            .authorizeHttpRequests(requests -> requests.anyRequest().authenticated()).build();
    }

    @Bean
    @Order(2)
    SecurityFilterChain forms(HttpSecurity http) throws Exception {
        HttpSessionCsrfTokenRepository tokens = new HttpSessionCsrfTokenRepository();
        tokens.setParameterName("csrf_token");
        return http.securityMatcher("/csrf").csrf(csrf -> csrf.csrfTokenRepository(tokens))
            .authorizeHttpRequests(requests -> requests.anyRequest().permitAll()).build();
    }

    @Bean
    @Order(3)
    SecurityFilterChain others(HttpSecurity http) throws Exception {
        return http.csrf(AbstractHttpConfigurer::disable).headers(Customizer.withDefaults())
            .authorizeHttpRequests(requests -> requests.anyRequest().permitAll()).build();
    }

    @Bean
    WebMvcConfigurer files(Environment environment) {
        return new WebMvcConfigurer() {
            @Override
            public void addResourceHandlers(ResourceHandlerRegistry registry) {
                registry.addResourceHandler("/files/**").addResourceLocations("file:" + environment.getRequiredProperty("FILES") + "/");
            }
        };
    }

    /** Without the time, so that two pages can be compared; with the message, if it is not the server's fault. */
    @Bean
    DefaultErrorAttributes errorPage() {
        return new DefaultErrorAttributes() {
            @Override
            public Map<String, Object> getErrorAttributes(WebRequest request, ErrorAttributeOptions options) {
                Map<String, Object> told = super.getErrorAttributes(request, options.including(Include.MESSAGE));
                told.remove("timestamp");
                if ((int) told.get("status") >= 500) {
                    told.remove("message");
                }
                return told;
            }
        };
    }
}
