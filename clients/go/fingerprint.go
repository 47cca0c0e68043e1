// SPDX-License-Identifier: PostgreSQL

package once

import (
	"crypto/sha256"
	"encoding/binary"
)

// Fingerprints that the client computes itself, by docs/reference/fingerprint.md, once it knows a tenant's
// salt: in the database they cost as much as half of start. Those of JSON are the database's, since
// it has the canonical form.

const tenantsMax = 1000

// hashedOf gives what is hashed after the salt; nil where the database has to do it.
func hashedOf(request any) []byte {
	switch given := request.(type) {
	case string:
		return append([]byte{'b'}, given...)
	case []byte:
		return append([]byte{'b'}, given...)
	case HTTPRequest:
		if given.CanonicalJSON {
			return nil
		}
		parts := [...]string{given.Method, given.ContentType, "", given.Target}
		size := 1 + 4*8 + len(given.Method) + len(given.ContentType) + len(given.Body) + len(given.Target)
		hashed := append(make([]byte, 0, size), 'r')
		for i, part := range parts {
			if i == 2 {
				hashed = binary.BigEndian.AppendUint64(hashed, uint64(len(given.Body)))
				hashed = append(hashed, given.Body...)
				continue
			}
			hashed = binary.BigEndian.AppendUint64(hashed, uint64(len(part)))
			hashed = append(hashed, part...)
		}
		return hashed
	}
	return nil
}

func fingerprintOf(salt, hashed []byte) []byte {
	hash := sha256.New()
	hash.Write(salt)
	hash.Write(hashed)
	return hash.Sum(nil)
}

// Salts is what is remembered of them with one connection. Another one may lead to another database,
// as after a restore.
type Salts map[string][]byte

func (s Salts) remember(tenant string, salt []byte) {
	if s == nil {
		return
	}
	if len(s) >= tenantsMax {
		clear(s)
	}
	s[tenant] = salt
}
