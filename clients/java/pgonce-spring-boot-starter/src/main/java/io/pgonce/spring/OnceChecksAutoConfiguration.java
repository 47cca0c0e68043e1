// SPDX-License-Identifier: PostgreSQL
package io.pgonce.spring;

import org.springframework.beans.factory.BeanFactory;
import org.springframework.beans.factory.config.BeanDefinition;
import org.springframework.boot.autoconfigure.AutoConfiguration;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Role;

/** Looks at the annotations of all beans, also where pgonce is not set up: one that would do nothing is an error at the start. */
@AutoConfiguration(after = OnceAutoConfiguration.class)
public class OnceChecksAutoConfiguration {
    /** For Spring. */
    public OnceChecksAutoConfiguration() {
    }

    @Bean
    @Role(BeanDefinition.ROLE_INFRASTRUCTURE)
    static AnnotationChecks onceAnnotationChecks(BeanFactory beans) {
        return new AnnotationChecks(beans, () -> beans.containsBean(OnceAutoConfiguration.HANDLERS)
            ? type -> beans.getBean(OnceAutoConfiguration.HANDLERS, KnownControllers.class).handles(type) : null);
    }
}
