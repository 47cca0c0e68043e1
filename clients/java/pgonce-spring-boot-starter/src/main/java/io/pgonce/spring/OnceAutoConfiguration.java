// SPDX-License-Identifier: PostgreSQL
package io.pgonce.spring;

import com.fasterxml.jackson.databind.ObjectMapper;
import io.micrometer.observation.ObservationRegistry;
import io.pgonce.Observer;
import io.pgonce.Once;
import io.pgonce.TransactionControl;
import jakarta.servlet.MultipartConfigElement;
import javax.sql.DataSource;
import org.aopalliance.intercept.MethodInterceptor;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.hibernate.resource.jdbc.spi.StatementInspector;
import org.springframework.aop.Advisor;
import org.springframework.aop.support.DefaultPointcutAdvisor;
import org.springframework.aop.support.annotation.AnnotationMatchingPointcut;
import org.springframework.beans.factory.ObjectProvider;
import org.springframework.beans.factory.annotation.Qualifier;
import org.springframework.beans.factory.config.BeanDefinition;
import org.springframework.boot.autoconfigure.AutoConfiguration;
import org.springframework.boot.autoconfigure.condition.ConditionalOnBean;
import org.springframework.boot.autoconfigure.condition.ConditionalOnClass;
import org.springframework.boot.autoconfigure.condition.ConditionalOnMissingBean;
import org.springframework.boot.autoconfigure.condition.ConditionalOnSingleCandidate;
import org.springframework.boot.autoconfigure.condition.ConditionalOnWebApplication;
import org.springframework.boot.autoconfigure.orm.jpa.HibernatePropertiesCustomizer;
import org.springframework.boot.web.servlet.FilterRegistrationBean;
import org.springframework.boot.web.servlet.error.ErrorController;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.context.annotation.Role;
import org.springframework.core.Ordered;
import org.springframework.core.env.Environment;
import org.springframework.transaction.PlatformTransactionManager;
import org.springframework.transaction.support.TransactionSynchronizationManager;
import org.springframework.web.servlet.HandlerExceptionResolver;
import org.springframework.web.servlet.mvc.method.annotation.RequestMappingHandlerMapping;

/**
 * Beans over the application's DataSource and transaction manager. {@code pgonce.tenant=none} says that there is but one
 * caller; else a {@link TenantResolver}, by default the principal's name, says whose key it is.
 */
@AutoConfiguration(afterName = {
    "org.springframework.boot.autoconfigure.jdbc.DataSourceTransactionManagerAutoConfiguration",
    "org.springframework.boot.autoconfigure.orm.jpa.HibernateJpaAutoConfiguration",
    "org.springframework.boot.autoconfigure.jackson.JacksonAutoConfiguration",
    "org.springframework.boot.actuate.autoconfigure.observation.ObservationAutoConfiguration"})
@ConditionalOnSingleCandidate(DataSource.class)
@ConditionalOnBean(PlatformTransactionManager.class)
public class OnceAutoConfiguration {
    static final String HANDLERS = "pgonceIdempotentHandlers";

    /** For Spring. */
    public OnceAutoConfiguration() {
    }

    /**
     * The door.
     *
     * @param manager the application's
     * @param source the application's
     * @param observer Micrometer's, if present
     * @return over Spring's transactions
     */
    @Bean
    @ConditionalOnMissingBean
    public Once once(PlatformTransactionManager manager, DataSource source, ObjectProvider<Observer> observer) {
        return Once.over(new SpringTransactions(manager, source), observer.getIfAvailable(Observer::found));
    }

    /**
     * For @Transactional methods.
     *
     * @param once the door
     * @param source the application's
     * @return emit, receive and lock in the open transaction
     */
    @Bean
    @ConditionalOnMissingBean
    public OnceTransaction onceTransaction(Once once, DataSource source) {
        return new OnceTransaction(once, source);
    }

    /** Micrometer's observations. */
    @Configuration(proxyBeanMethods = false)
    @ConditionalOnClass(ObservationRegistry.class)
    static class Observed {
        @Bean
        @ConditionalOnBean(ObservationRegistry.class)
        @ConditionalOnMissingBean(Observer.class)
        Observer onceObserver(ObservationRegistry registry) {
            return new ObservationObserver(registry);
        }
    }

    /** {@link Idempotent}, {@link HttpOnce}. */
    @Configuration(proxyBeanMethods = false)
    @ConditionalOnWebApplication(type = ConditionalOnWebApplication.Type.SERVLET)
    @ConditionalOnClass(RequestMappingHandlerMapping.class)
    static class Web {
        private static final int ANSWER_MAX = 1 << 20;

        @Bean(HANDLERS)
        IdempotentHandlers idempotentHandlers(@Qualifier("requestMappingHandlerMapping") RequestMappingHandlerMapping mapping) {
            return new IdempotentHandlers(mapping);
        }

        @Bean
        IdempotencyFilter idempotencyFilter(Once once, IdempotentHandlers handlers, ObjectProvider<TenantResolver> tenants, Environment environment,
                                            @Qualifier("handlerExceptionResolver") ObjectProvider<HandlerExceptionResolver> resolver,
                                            ObjectProvider<ErrorController> errors, ObjectProvider<MultipartConfigElement> uploads) {
            String page = environment.resolvePlaceholders("${server.error.path:${error.path:/error}}");
            WebSettings settings = new WebSettings(once, tenants(tenants, environment), environment, resolver.getIfAvailable(),
                new ErrorPage(errors.stream().findAny().isPresent() ? page : null), uploads.getIfAvailable());
            settings.check();
            return new IdempotencyFilter(settings, handlers);
        }

        @Bean
        LateFailures lateFailures() {
            return new LateFailures();
        }

        @Bean
        @ConditionalOnMissingBean
        HttpOnce httpOnce(Once once, ObjectProvider<TenantResolver> tenants, Environment environment) {
            return new HttpOnce(once.keeping(ANSWER_MAX), tenants(tenants, environment), WebSettings.withHost(environment), WebSettings.behindGateway(environment),
                WebSettings.problemBase(environment));
        }

        private static TenantResolver tenants(ObjectProvider<TenantResolver> tenants, Environment environment) {
            TenantResolver principal = request -> request.getUserPrincipal() == null ? null : request.getUserPrincipal().getName();
            return "none".equals(environment.getProperty("pgonce.tenant")) ? null : tenants.getIfAvailable(() -> principal);
        }

        /** Behind authentication, and behind the filters that most applications have. */
        @Bean
        FilterRegistrationBean<IdempotencyFilter> idempotencyFilterRegistration(IdempotencyFilter filter) {
            FilterRegistrationBean<IdempotencyFilter> registration = new FilterRegistrationBean<>(filter);
            registration.setOrder(Ordered.LOWEST_PRECEDENCE - 1000);
            return registration;
        }
    }

    /** {@link EarlyForms}, before all others. */
    @Configuration(proxyBeanMethods = false)
    @ConditionalOnWebApplication(type = ConditionalOnWebApplication.Type.SERVLET)
    @ConditionalOnClass(RequestMappingHandlerMapping.class)
    static class Forms {
        @Bean
        FilterRegistrationBean<EarlyForms> idempotentForms() {
            FilterRegistrationBean<EarlyForms> registration = new FilterRegistrationBean<>(new EarlyForms());
            registration.setOrder(Ordered.HIGHEST_PRECEDENCE);
            return registration;
        }
    }

    /** {@link OnceEffect}. */
    @Configuration(proxyBeanMethods = false)
    @ConditionalOnClass({MethodInterceptor.class, ObjectMapper.class})
    static class Effects {
        @Bean
        @Role(BeanDefinition.ROLE_INFRASTRUCTURE)
        static Advisor onceEffectAdvisor(ObjectProvider<Once> once, ObjectProvider<ObjectMapper> json) {
            return new DefaultPointcutAdvisor(new AnnotationMatchingPointcut(null, OnceEffect.class, true),
                new OnceEffectInterceptor(once::getObject, json.getIfAvailable(ObjectMapper::new)));
        }
    }

    /** What JPA sends as text. */
    @Configuration(proxyBeanMethods = false)
    @ConditionalOnClass({HibernatePropertiesCustomizer.class, StatementInspector.class})
    static class Jpa {
        private static final String INSPECTOR = "hibernate.session_factory.statement_inspector";

        @Bean
        HibernatePropertiesCustomizer onceStatements(DataSource source) {
            StatementInspector inspector = sql -> {
                if (TransactionSynchronizationManager.getResource(source) instanceof GuardedHolder) {
                    TransactionControl.refuse(sql);
                }
                return sql;
            };
            return properties -> properties.putIfAbsent(INSPECTOR, inspector);
        }
    }

    /** {@link KafkaOnce}. */
    @Configuration(proxyBeanMethods = false)
    @ConditionalOnClass(ConsumerRecord.class)
    static class Kafka {
        @Bean
        KafkaOnce kafkaOnce(OnceTransaction transaction, PlatformTransactionManager manager) {
            return new KafkaOnce(transaction, manager);
        }
    }
}
