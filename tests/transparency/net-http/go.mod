module transparency

go 1.24

require (
	github.com/alexedwards/scs/v2 v2.9.0
	github.com/gorilla/csrf v1.7.3
	github.com/jackc/pgx/v5 v5.7.2
	github.com/klauspost/compress v1.17.11
	github.com/rs/cors v1.11.1
	pgonce.internal/once v1.0.0
)

require (
	github.com/gorilla/securecookie v1.1.2 // indirect
	github.com/jackc/pgpassfile v1.0.0 // indirect
	github.com/jackc/pgservicefile v0.0.0-20240606120523-5a60cdf6a761 // indirect
	github.com/jackc/puddle/v2 v2.2.2 // indirect
	golang.org/x/crypto v0.31.0 // indirect
	golang.org/x/sync v0.10.0 // indirect
	golang.org/x/text v0.21.0 // indirect
)

replace pgonce.internal/once => ../../../clients/go
