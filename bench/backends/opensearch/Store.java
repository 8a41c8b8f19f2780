import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Properties;
import org.codelibs.opensearch.runner.OpenSearchRunner;
import org.opensearch.Version;

/** One node of OpenSearch: `Store SETTINGS`. Without settings it prints its version. */
public class Store {
    public static void main(String[] arguments) throws Exception {
        if (arguments.length == 0) {
            System.out.println("OpenSearch " + Version.CURRENT);
            return;
        }
        Properties settings = new Properties();
        try (var reader = Files.newBufferedReader(Path.of(arguments[0]))) {
            settings.load(reader);
        }
        // The first node of the runner listens on the port after the base.
        int base = Integer.parseInt(settings.getProperty("port")) - 1;
        OpenSearchRunner runner = new OpenSearchRunner();
        runner.build(new String[] {
            "-basePath", settings.getProperty("directory"), "-numOfNode", "1",
            "-baseHttpPort", Integer.toString(base), "-clusterName", "lab",
        });
        Thread.currentThread().join();
    }
}
