module inbox

go 1.21

require (
	github.com/aws/aws-lambda-go v1.47.0
	github.com/jackc/pgx/v5 v5.7.2
	github.com/rabbitmq/amqp091-go v1.10.0
	github.com/twmb/franz-go v1.17.1
	pgonce.internal/once v0.0.0
)

replace pgonce.internal/once => ../../../../clients/go
