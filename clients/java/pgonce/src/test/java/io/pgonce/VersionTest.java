// SPDX-License-Identifier: PostgreSQL
package io.pgonce;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.pgonce.testing.Child;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.junit.jupiter.api.Test;

/** The poms: the release's version, and no host that anything is fetched from. */
class VersionTest {
    private static String first(String pattern, String text) {
        Matcher matcher = Pattern.compile(pattern, Pattern.DOTALL).matcher(text);
        assertTrue(matcher.find(), pattern);
        return matcher.group(1);
    }

    @Test
    void theVersionIsTheReleasesAndThePomsNameNoHost() throws Exception {
        String release = first("version: '([^']+)'", Files.readString(Child.ROOT.resolve("meson.build")));
        Path java = Child.ROOT.resolve("clients/java");
        for (String pom : List.of("pom.xml", "pgonce/pom.xml", "pgonce-spring-boot-starter/pom.xml")) {
            String text = Files.readString(java.resolve(pom));
            assertEquals(release, first("pgonce-parent</artifactId>\\s*<version>([^<]+)</version>", text), pom);
            assertFalse(text.matches("(?s).*<(plugin)?[rR]epository>.*"), pom);
            assertFalse(text.replace("http://maven.apache.org/POM/4.0.0", "").contains("://"), pom);
        }
    }
}
