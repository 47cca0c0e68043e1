// SPDX-License-Identifier: PostgreSQL
// Gives the Java programs of docs/how their messages: see ../run.py.
import com.amazonaws.services.lambda.runtime.events.SQSBatchResponse;
import com.amazonaws.services.lambda.runtime.events.SQSEvent;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.rabbitmq.client.AMQP;
import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Delivery;
import com.rabbitmq.client.Envelope;
import java.io.File;
import java.lang.reflect.Proxy;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.postgresql.ds.PGSimpleDataSource;

class Driver {
    static final ObjectMapper JSON = new ObjectMapper();

    static byte[] bytes(JsonNode text) {
        return text.asText().getBytes(StandardCharsets.UTF_8);
    }

    static String kafka(Inbox inbox, JsonNode message) {
        ConsumerRecord<String, byte[]> record = new ConsumerRecord<>("orders", 0, 0, null, bytes(message.get(1)));
        record.headers().add("Pgonce-Event-Id", bytes(message.get(0)));
        try {
            inbox.onRecord(record);
            return "done";
        } catch (Exception failure) {
            return "error";
        }
    }

    static List<String> sqs(Inbox inbox, JsonNode batch) {
        List<SQSEvent.SQSMessage> messages = new ArrayList<>();
        for (JsonNode each : batch.get("Records")) {
            SQSEvent.MessageAttribute id = new SQSEvent.MessageAttribute();
            id.setStringValue(each.at("/messageAttributes/Pgonce-Event-Id/stringValue").asText());
            SQSEvent.SQSMessage message = new SQSEvent.SQSMessage();
            message.setMessageId(each.get("messageId").asText());
            message.setBody(each.get("body").asText());
            message.setMessageAttributes(Map.of("Pgonce-Event-Id", id));
            messages.add(message);
        }
        SQSEvent event = new SQSEvent();
        event.setRecords(messages);
        return inbox.handleRequest(event).getBatchItemFailures().stream().map(SQSBatchResponse.BatchItemFailure::getItemIdentifier).toList();
    }

    static String rabbit(Inbox inbox, JsonNode message) throws Exception {
        List<String> said = new ArrayList<>();
        Channel channel = (Channel) Proxy.newProxyInstance(Driver.class.getClassLoader(), new Class<?>[] {Channel.class}, (proxy, method, words) -> {
            said.add(switch (method.getName()) {
                case "basicAck" -> "ack";
                case "basicNack" -> words[1].equals(false) && words[2].equals(true) ? "nack" : "dropped";
                default -> method.getName();
            });
            return null;
        });
        AMQP.BasicProperties properties = new AMQP.BasicProperties.Builder().messageId(message.get(0).asText()).build();
        inbox.onDelivery(channel, new Delivery(new Envelope(1, false, "", "stock"), properties, bytes(message.get(1))));
        return String.join(" ", said);
    }

    public static void main(String[] words) throws Exception {
        JsonNode cases = JSON.readTree(new File(System.getenv("CASES")));
        byte[] secret = bytes(cases.get("secret"));
        PGSimpleDataSource source = new PGSimpleDataSource();
        source.setURL(System.getenv("DATABASE_JDBC"));
        Inbox inbox = new Inbox(source);
        Webhooks webhooks = new Webhooks(inbox);
        Map<String, List<Object>> said = new LinkedHashMap<>();
        for (String way : List.of("kafka", "sqs", "rabbit", "stripe", "github")) {
            List<Object> outcomes = new ArrayList<>();
            for (JsonNode each : cases.get(way)) {
                outcomes.add(switch (way) {
                    case "kafka" -> kafka(inbox, each);
                    case "sqs" -> sqs(inbox, each);
                    case "rabbit" -> rabbit(inbox, each);
                    case "stripe" -> webhooks.stripe(secret, Map.of("Stripe-Signature", each.get("signature").asText()), bytes(each.get("body")));
                    default -> webhooks.github(secret, Map.of("X-Hub-Signature-256", each.get("signature").asText(), "X-GitHub-Delivery",
                        each.get("delivery").asText()), bytes(each.get("body")));
                });
            }
            said.put(way, outcomes);
        }
        System.out.println(JSON.writeValueAsString(said));
    }
}
