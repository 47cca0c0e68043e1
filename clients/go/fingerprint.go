// SPDX-License-Identifier: PostgreSQL

package once

import (
	"crypto/sha256"
	"encoding/binary"
	"sync"
)

// Fingerprints that the client computes itself, by docs/fingerprint.md, once it knows a tenant's
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

// salts are remembered until a connection is lost: the next one may lead to another database, as
// after a restore.
type salts struct {
	mutex    sync.RWMutex
	byTenant map[string][]byte
}

func (s *salts) of(tenant string) []byte {
	s.mutex.RLock()
	defer s.mutex.RUnlock()
	return s.byTenant[tenant]
}

func (s *salts) remember(tenant string, salt []byte) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.byTenant == nil || len(s.byTenant) >= tenantsMax {
		s.byTenant = map[string][]byte{}
	}
	s.byTenant[tenant] = salt
}

func (s *salts) forget() {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.byTenant = nil
}
