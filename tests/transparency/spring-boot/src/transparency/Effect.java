// SPDX-License-Identifier: PostgreSQL
package transparency;

import jakarta.persistence.Entity;
import jakarta.persistence.Id;

/** A row of the table effect, to JPA. */
@Entity
class Effect {
    @Id
    String name;

    Effect() {
    }

    Effect(String name) {
        this.name = name;
    }
}
