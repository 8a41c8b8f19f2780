import java.io.BufferedReader;
import java.io.FileInputStream;
import java.io.InputStreamReader;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.security.KeyStore;
import java.security.cert.CertificateFactory;
import javax.net.ssl.SSLContext;
import javax.net.ssl.TrustManagerFactory;

/**
 * Sends content that nobody wants, over HTTP/2 with the JDK's client: `Refused.java BASE CA` reads lines `PATH BYTES`, and says
 * the status of each, or what went wrong.
 */
class Refused {
    public static void main(String[] arguments) throws Exception {
        HttpClient client =
            HttpClient.newBuilder().version(HttpClient.Version.HTTP_2).sslContext(trusting(arguments[1])).build();
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split(" ");
            System.out.println(ask(client, arguments[0] + words[0], Integer.parseInt(words[1])));
        }
        System.exit(0); // its threads would wait for more
    }

    static String ask(HttpClient client, String url, int size) {
        HttpRequest request =
            HttpRequest.newBuilder(URI.create(url)).POST(HttpRequest.BodyPublishers.ofByteArray(new byte[size])).build();
        try {
            HttpResponse<Void> answer = client.send(request, HttpResponse.BodyHandlers.discarding());
            boolean isHttp2 = answer.version() == HttpClient.Version.HTTP_2;
            return isHttp2 ? String.valueOf(answer.statusCode()) : "failed: it speaks " + answer.version();
        } catch (Exception error) {
            return "failed: " + error;
        }
    }

    static SSLContext trusting(String authority) throws Exception {
        KeyStore store = KeyStore.getInstance(KeyStore.getDefaultType());
        store.load(null, null);
        try (FileInputStream file = new FileInputStream(authority)) {
            store.setCertificateEntry("authority", CertificateFactory.getInstance("X.509").generateCertificate(file));
        }
        TrustManagerFactory managers = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
        managers.init(store);
        SSLContext context = SSLContext.getInstance("TLS");
        context.init(null, managers.getTrustManagers(), null);
        return context;
    }
}
