// SPDX-License-Identifier: PostgreSQL
// The Debezium engine for the tests: reads its properties from a file, and writes what its outbox router sends to standard output, a line of JSON each.
// A record is processed when its line is written.
import com.fasterxml.jackson.databind.ObjectMapper;
import io.debezium.embedded.Connect;
import io.debezium.engine.ChangeEvent;
import io.debezium.engine.DebeziumEngine;
import java.io.FileReader;
import java.io.PrintStream;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.connect.source.SourceRecord;

public class Capture {
    static final ObjectMapper JSON = new ObjectMapper();

    static String line(SourceRecord record) {
        Map<String, Object> headers = new LinkedHashMap<>();
        record.headers().forEach(header -> headers.put(header.key(), header.value() == null ? null : String.valueOf(header.value())));
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("topic", record.topic());
        line.put("key", record.key() == null ? null : String.valueOf(record.key()));
        line.put("headers", headers);
        line.put("value", String.valueOf(record.value()));
        try {
            return JSON.writeValueAsString(line);
        } catch (Exception e) {
            throw new IllegalStateException(e);
        }
    }

    public static void main(String[] words) throws Exception {
        Properties properties = new Properties();
        properties.load(new FileReader(words[0]));
        PrintStream out = new PrintStream(System.out, false, "UTF-8");
        DebeziumEngine<ChangeEvent<SourceRecord, SourceRecord>> engine = DebeziumEngine.create(Connect.class)
            .using(properties)
            .notifying((List<ChangeEvent<SourceRecord, SourceRecord>> batch,
                        DebeziumEngine.RecordCommitter<ChangeEvent<SourceRecord, SourceRecord>> committer) -> {
                for (ChangeEvent<SourceRecord, SourceRecord> event : batch) {
                    out.println(line(event.value()));
                    out.flush();
                    committer.markProcessed(event);
                }
                committer.markBatchFinished();
            })
            .using((success, message, error) -> System.err.println("ended: success=" + success + " " + message))
            .build();
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            try {
                engine.close();
            } catch (Exception e) {
                System.err.println("while closing: " + e);
            }
        }));
        engine.run();
        Runtime.getRuntime().halt(0);
    }
}
