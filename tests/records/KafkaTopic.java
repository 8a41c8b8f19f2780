import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import java.util.stream.Stream;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.common.config.ConfigResource;

/**
 * Creates a topic with a setting, or with partitions that have one replica each, at these brokers; or changes a setting:
 * `KafkaTopic.java PORT TOPIC create cleanup.policy=compact`, `... create 1,2,1,2`, `... set cleanup.policy=delete`.
 */
public class KafkaTopic {
    public static void main(String[] arguments) throws Exception {
        String topic = arguments[1], what = arguments[3];
        int equals = what.indexOf('=');
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", "127.0.0.1:" + arguments[0]))) {
            if (arguments[2].equals("set")) {
                var entry = new ConfigEntry(what.substring(0, equals), what.substring(equals + 1));
                var change = List.of(new AlterConfigOp(entry, AlterConfigOp.OpType.SET));
                admin.incrementalAlterConfigs(Map.of(new ConfigResource(ConfigResource.Type.TOPIC, topic), change)).all().get();
                return;
            }
            NewTopic created;
            if (equals > 0) {
                var settings = Map.of(what.substring(0, equals), what.substring(equals + 1));
                created = new NewTopic(topic, Optional.empty(), Optional.empty()).configs(settings);
            } else {
                int[] brokers = Stream.of(what.split(",")).mapToInt(Integer::parseInt).toArray();
                Map<Integer, List<Integer>> replicas =
                    IntStream.range(0, brokers.length).boxed().collect(Collectors.toMap(it -> it, it -> List.of(brokers[it])));
                created = new NewTopic(topic, replicas);
            }
            admin.createTopics(List.of(created)).all().get();
        }
    }
}
