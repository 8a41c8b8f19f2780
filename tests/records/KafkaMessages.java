import java.time.Duration;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;

/** Prints what a topic has now, a message a line: `KafkaMessages.java PORT TOPIC`. */
public class KafkaMessages {
    public static void main(String[] arguments) {
        Map<String, Object> options = Map.of("bootstrap.servers", "127.0.0.1:" + arguments[0]);
        try (var consumer = new KafkaConsumer<>(options, new StringDeserializer(), new StringDeserializer())) {
            List<TopicPartition> partitions = consumer.partitionsFor(arguments[1]).stream()
                .map(known -> new TopicPartition(known.topic(), known.partition())).toList();
            consumer.assign(partitions);
            consumer.seekToBeginning(partitions);
            Map<TopicPartition, Long> ends = consumer.endOffsets(partitions);
            while (partitions.stream().anyMatch(partition -> consumer.position(partition) < ends.get(partition))) {
                for (var message : consumer.poll(Duration.ofSeconds(1))) {
                    System.out.println(message.value());
                }
            }
        }
    }
}
