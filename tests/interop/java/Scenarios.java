import java.io.PrintStream;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * Runs scenarios with the official client and prints one JSON line for each.
 *
 * <p>Usage: Scenarios NAMESRV BROKER SUFFIX PARALLEL SCENARIO...; SUFFIX makes topics and groups unique to the run.
 */
public final class Scenarios {
    private static final int LIMIT_SECONDS = 150;

    private Scenarios() {
    }

    static Map<String, Scenario> all() {
        Map<String, Scenario> all = new LinkedHashMap<>();
        Sending.register(all);
        Consuming.register(all);
        Retrying.register(all);
        Popping.register(all);
        Pulling.register(all);
        Operating.register(all);
        Transactions.register(all);
        return all;
    }

    public static void main(String[] args) throws Exception {
        PrintStream out = System.out;
        System.setOut(System.err); // output of the client library is not a result
        if (args.length == 1 && args[0].equals("--list")) {
            all().keySet().forEach(out::println);
            return;
        }
        DefaultMQAdminExt admin = Lab.startAdmin(args[0]);
        ExecutorService starters = Executors.newFixedThreadPool(Integer.parseInt(args[3]));
        for (int i = 4; i < args.length; i++) {
            String name = args[i];
            Lab lab = new Lab(args[0], args[1], admin, name + "-" + args[2]);
            starters.submit(() -> {
                String line = Json.object(outcome(name, lab));
                synchronized (out) {
                    out.println(line);
                    out.flush();
                }
            });
        }
        starters.shutdown();
        starters.awaitTermination(1, TimeUnit.HOURS);
        System.exit(0); // remaining client threads must not delay the matrix
    }

    private static Map<String, Object> outcome(String name, Lab lab) {
        long began = System.nanoTime();
        Map<String, Object> result = new LinkedHashMap<>();
        result.put("scenario", name);
        ExecutorService runner = Executors.newSingleThreadExecutor();
        try {
            Scenario scenario = all().get(name);
            if (scenario == null) {
                throw new IllegalArgumentException("no scenario named " + name + "; known: " + all().keySet());
            }
            Future<String> run = runner.submit(() -> scenario.run(lab));
            String evidence = run.get(LIMIT_SECONDS, TimeUnit.SECONDS);
            result.put("status", "pass");
            result.put("evidence", evidence);
        } catch (TimeoutException stuck) {
            result.put("status", "fail");
            result.put("evidence", "not finished after " + LIMIT_SECONDS + " s");
        } catch (Exception error) {
            Throwable cause = error.getCause() == null ? error : error.getCause();
            result.put("status", cause instanceof Scenario.NotApplicable ? "n/a" : "fail");
            result.put("evidence", describe(cause));
        } finally {
            runner.shutdownNow();
            lab.close();
        }
        result.put("ms", (System.nanoTime() - began) / 1_000_000);
        return result;
    }

    private static String describe(Throwable error) {
        if (error instanceof Scenario.Failed || error instanceof Scenario.NotApplicable) {
            return error.getMessage();
        }
        StringBuilder text = new StringBuilder(error.toString());
        for (StackTraceElement frame : error.getStackTrace()) {
            if (!frame.getClassName().contains(".")) { // our own classes have no package
                text.append(" at ").append(frame);
                break;
            }
        }
        Throwable cause = error;
        while (cause.getCause() != null && cause.getCause() != cause) {
            cause = cause.getCause();
        }
        if (cause != error) {
            text.append(" because of ").append(cause); // the client wraps a broker's answer more than once
        }
        return text.toString();
    }
}
