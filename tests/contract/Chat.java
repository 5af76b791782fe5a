import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandlers;
import java.nio.charset.StandardCharsets;
import java.util.List;

/** Sends a chat three times with the client of the JDK, and prints what it gets. */
public class Chat {
    public static void main(String[] arguments) throws Exception {
        byte[] body = arguments[2].getBytes(StandardCharsets.UTF_8);
        HttpClient client = HttpClient.newHttpClient();
        // The length of the second body is unknown to the client, which sends it in chunks.
        for (var publisher : List.of(
                BodyPublishers.ofByteArray(body),
                BodyPublishers.fromPublisher(BodyPublishers.ofByteArray(body)),
                BodyPublishers.ofByteArray(body))) {
            HttpRequest request = HttpRequest.newBuilder(URI.create(arguments[0]))
                    .header("Authorization", "Bearer " + arguments[1])
                    .header("Content-Type", "application/json")
                    .POST(publisher)
                    .build();
            HttpResponse<String> answer = client.send(request, BodyHandlers.ofString());
            System.out.println(answer.statusCode() + " " + answer.version() + " " + answer.body());
        }
    }
}
