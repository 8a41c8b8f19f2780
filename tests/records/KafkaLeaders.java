import java.util.Map;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.serialization.StringDeserializer;

/** Prints the leader of each partition of a topic, an id a line: `KafkaLeaders.java PORT TOPIC`. */
public class KafkaLeaders {
    public static void main(String[] arguments) {
        Map<String, Object> options = Map.of("bootstrap.servers", "127.0.0.1:" + arguments[0]);
        try (var consumer = new KafkaConsumer<>(options, new StringDeserializer(), new StringDeserializer())) {
            for (var partition : consumer.partitionsFor(arguments[1])) {
                System.out.println(partition.leader() == null ? -1 : partition.leader().id());
            }
        }
    }
}
