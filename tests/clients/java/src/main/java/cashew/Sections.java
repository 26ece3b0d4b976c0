package cashew;

import java.util.Arrays;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.TreeSet;

/**
 * What both programs share: sections that run one after another, and the first wrong answer ends
 * the program. Arguments, if there are any, name the sections to run.
 */
final class Sections {
    static final int PATIENCE_MS = 30_000;

    interface Section {
        void run() throws Exception;
    }

    interface Ask {
        Object ask() throws Exception;
    }

    private final Map<String, Section> sections = new LinkedHashMap<>();

    Sections add(String name, Section section) {
        sections.put(name, section);
        return this;
    }

    void run(String[] chosen) {
        Thread.setDefaultUncaughtExceptionHandler((thread, error) -> end("a thread", error));
        var names = List.of(chosen);
        sections.forEach((name, section) -> {
            if (!names.isEmpty() && !names.contains(name)) {
                return;
            }
            var watch = new Thread(() -> {
                try {
                    Thread.sleep(PATIENCE_MS);
                    end(name, new AssertionError("not within " + PATIENCE_MS + " ms"));
                } catch (InterruptedException done) {
                    // The section came to its end.
                }
            });
            watch.setDaemon(true);
            watch.start();
            try {
                section.run();
            } catch (Throwable error) {
                end(name, error);
            }
            watch.interrupt();
            System.out.println("ok " + name);
        });
        System.exit(0);
    }

    private static void end(String name, Throwable error) {
        System.err.println(name + ":");
        error.printStackTrace();
        Runtime.getRuntime().halt(1);
    }

    private static String[] address() {
        return address("CASHEW_REDIS");
    }

    static String[] address(String name) {
        var address = System.getenv(name);
        if (address == null) {
            throw new AssertionError(
                name + "=HOST:PORT is not set; the programs of tests/python do that");
        }
        return address.split(":");
    }

    static String host() {
        return address()[0];
    }

    static int port() {
        return Integer.parseInt(address()[1]);
    }

    /** The addresses of the nodes that clients of a cluster are to know. */
    static TreeSet<String> nodes() {
        return set(System.getenv("CASHEW_NODES").split(","));
    }

    static void equal(Object got, Object wanted) {
        if (!Objects.equals(got, wanted)) {
            throw new AssertionError("got " + got + ", want " + wanted);
        }
    }

    static void check(boolean so, String what) {
        if (!so) {
            throw new AssertionError(what);
        }
    }

    /** The error that this ends with has this text. */
    static void fails(String text, Ask ask) throws Exception {
        Object got;
        try {
            got = ask.ask();
        } catch (Exception error) {
            for (Throwable at = error; at != null; at = at.getCause()) {
                if (String.valueOf(at.getMessage()).contains(text)) {
                    return;
                }
            }
            throw error;
        }
        throw new AssertionError("got " + got + ", want an error with " + text);
    }

    static TreeSet<String> set(String... words) {
        return new TreeSet<>(Arrays.asList(words));
    }

    static String[] keys(String prefix, int count) {
        var keys = new String[count];
        Arrays.setAll(keys, n -> prefix + n);
        return keys;
    }

    static <T> List<T> list() {
        return Collections.synchronizedList(new java.util.ArrayList<>());
    }

    interface Condition {
        boolean holds() throws Exception;
    }

    static void waitUntil(String what, Condition condition) throws Exception {
        var deadline = System.nanoTime() + PATIENCE_MS / 2 * 1_000_000L;
        while (!condition.holds()) {
            check(System.nanoTime() < deadline, "not in time: " + what);
            Thread.sleep(2);
        }
    }
}
