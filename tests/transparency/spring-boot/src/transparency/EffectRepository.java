// SPDX-License-Identifier: PostgreSQL
package transparency;

import org.springframework.data.jpa.repository.JpaRepository;

/** Made by Spring Data JPA. */
interface EffectRepository extends JpaRepository<Effect, String> {
}
