import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.EnableAutoConfiguration;
import org.springframework.cloud.netflix.eureka.server.EnableEurekaServer;

/** A Eureka server for tests; its settings are arguments, such as {@code --server.port=8761}. */
@EnableAutoConfiguration
@EnableEurekaServer
public class Eureka {
    public static void main(String[] arguments) {
        SpringApplication.run(Eureka.class, arguments);
    }
}
