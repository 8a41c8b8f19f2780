import org.codelibs.opensearch.runner.OpenSearchRunner;

/** Starts one node: `OpenSearch.java DIRECTORY BASE_PORT`. It listens on the port after the base. Ends with its standard input. */
public class OpenSearch {
    public static void main(String[] arguments) throws Exception {
        OpenSearchRunner runner = new OpenSearchRunner();
        // Small, so that batches are too large for it.
        runner.onBuild((number, settings) -> settings.put("http.max_content_length", "64kb"));
        runner.build(new String[] {
            "-basePath", arguments[0], "-numOfNode", "1", "-baseHttpPort", arguments[1], "-clusterName", "weir-tests",
        });
        while (System.in.read() >= 0) {}
        Runtime.getRuntime().halt(0);
    }
}
