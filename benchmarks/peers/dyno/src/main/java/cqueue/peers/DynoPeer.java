package cqueue.peers;

import com.netflix.dyno.connectionpool.Host;
import com.netflix.dyno.connectionpool.HostBuilder;
import com.netflix.dyno.queues.DynoQueue;
import com.netflix.dyno.queues.Message;
import com.netflix.dyno.queues.ShardSupplier;
import com.netflix.dyno.queues.redis.v2.QueueBuilder;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Locale;
import java.util.Random;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;
import java.util.stream.Collectors;
import redis.clients.jedis.JedisPoolConfig;

/**
 * dyno-queues, driven line by line from standard input. Answers begin with "> ":
 * {@code enqueue MESSAGES SIZE BATCH THREADS} and {@code drain MESSAGES RECEIVE} answer seconds,
 * {@code latency RATE SECONDS SIZE} answers a JSON list of seconds.
 */
public final class DynoPeer {

    private static final int UNACK_MS = 60_000;
    private static final int STAMP_DIGITS = 20;
    private static final long STALL_NS = TimeUnit.SECONDS.toNanos(60);

    private final DynoQueue queue;
    private final Random random = new Random();

    private DynoPeer(DynoQueue queue) {
        this.queue = queue;
    }

    public static void main(String[] arguments) {
        int code = 0;
        try {
            serve(new DynoPeer(open(Integer.parseInt(arguments[0]))));
        } catch (Throwable failure) {
            failure.printStackTrace();
            code = 1;
        }
        System.exit(code); // threads of the libraries would go on
    }

    private static void serve(DynoPeer peer) throws Exception {
        BufferedReader input =
                new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            System.out.println("> " + peer.answer(line.trim().split(" ")));
        }
    }

    private static DynoQueue open(int port) {
        Host host = new HostBuilder().setHostname("localhost").setIpAddress("127.0.0.1").setPort(port)
                .setRack("rack").setDatacenter("local").setStatus(Host.Status.Up).createHost();
        return new QueueBuilder().setQueueName("bench").setRedisKeyPrefix("bench")
                .setUnackTime(UNACK_MS).setCurrentShard("rack").setShardSupplier(new OneShard())
                .useNonDynomiteRedis(new JedisPoolConfig(), Collections.singletonList(host)).build();
    }

    private String answer(String[] words) throws Exception {
        switch (words[0]) {
            case "hello":
                return "hello";
            case "enqueue":
                int threads = number(words, 4);
                return seconds(threads == 1
                        ? enqueue(number(words, 1), number(words, 2), number(words, 3))
                        : enqueue(number(words, 1), number(words, 2), number(words, 3), threads));
            case "drain":
                return seconds(drain(number(words, 1), number(words, 2)));
            case "latency":
                return latency(number(words, 1), number(words, 2), number(words, 3));
            default:
                throw new IllegalArgumentException(words[0]);
        }
    }

    private static int number(String[] words, int index) {
        return Integer.parseInt(words[index]);
    }

    private static String seconds(long nanoseconds) {
        return String.format(Locale.ROOT, "%.9f", nanoseconds / 1e9);
    }

    private long enqueue(int messages, int size, int batch) {
        long took = 0;
        for (int left = messages; left > 0; left -= batch) {
            List<Message> list = new ArrayList<>();
            for (int count = Math.min(left, batch); count > 0; count--) {
                list.add(message(size));
            }
            long begin = System.nanoTime();
            queue.push(list);
            took += System.nanoTime() - begin;
        }
        return took;
    }

    /** The same from several threads: all time counts, also what making the messages takes. */
    private long enqueue(int messages, int size, int batch, int threads) throws Exception {
        ExecutorService pool = Executors.newFixedThreadPool(threads);
        try {
            List<Future<?>> parts = new ArrayList<>();
            long begin = System.nanoTime();
            for (int part = 0; part < threads; part++) {
                int share = messages / threads + (part < messages % threads ? 1 : 0);
                parts.add(pool.submit(() -> enqueue(share, size, batch)));
            }
            for (Future<?> part : parts) {
                part.get();
            }
            return System.nanoTime() - begin;
        } finally {
            pool.shutdown();
        }
    }

    /** A pop that asks for more than there is waits its whole time, so it never asks for more. */
    private long drain(int messages, int receive) {
        long begin = System.nanoTime();
        long progress = begin;
        for (int left = messages; left > 0; ) {
            List<Message> list = queue.pop(Math.min(left, receive), 1, TimeUnit.SECONDS);
            queue.ack(list);
            left -= list.size();
            progress = list.isEmpty() ? progress : System.nanoTime();
            if (System.nanoTime() - progress > STALL_NS) {
                throw new IllegalStateException(left + " messages did not arrive");
            }
        }
        long took = System.nanoTime() - begin;
        checkEmpty();
        return took;
    }

    /** Nothing ready, and nothing that waits for an acknowledgement. */
    private void checkEmpty() {
        long left = queue.shardSizes().values().stream()
                .flatMap(sizes -> sizes.values().stream()).mapToLong(Long::longValue).sum();
        if (left != 0) {
            throw new IllegalStateException(left + " messages are left");
        }
    }

    private String latency(int rate, int seconds, int size) throws InterruptedException {
        int messages = rate * seconds;
        List<Long> took = Collections.synchronizedList(new ArrayList<>());
        Thread receiver = new Thread(() -> receive(messages, took));
        receiver.setDaemon(true);
        receiver.start();
        long begin = System.nanoTime();
        for (int index = 0; index < messages; index++) {
            long due = begin + index * 1_000_000_000L / rate;
            for (long wait = due - System.nanoTime(); wait > 0; wait = due - System.nanoTime()) {
                LockSupport.parkNanos(wait);
            }
            queue.push(Collections.singletonList(message(size)));
        }
        receiver.join(TimeUnit.NANOSECONDS.toMillis(STALL_NS));
        if (receiver.isAlive()) {
            throw new IllegalStateException("only " + took.size() + " of " + messages + " arrived");
        }
        checkEmpty();
        return took.stream().map(DynoPeer::seconds).collect(Collectors.joining(", ", "[", "]"));
    }

    private void receive(int messages, List<Long> took) {
        while (took.size() < messages) {
            List<Message> list = queue.pop(1, 1, TimeUnit.SECONDS);
            long now = System.nanoTime();
            for (Message message : list) {
                took.add(now - Long.parseLong(message.getPayload().substring(0, STAMP_DIGITS)));
            }
            queue.ack(list);
        }
    }

    private Message message(int size) {
        StringBuilder body = new StringBuilder(size + 16);
        body.append(String.format("%020d", System.nanoTime()));
        while (body.length() < size) {
            body.append(Integer.toHexString(random.nextInt()));
        }
        body.setLength(Math.max(STAMP_DIGITS, size));
        return new Message(UUID.randomUUID().toString(), body.toString());
    }

    /** All messages in one shard: there is one Redis. */
    private static final class OneShard implements ShardSupplier {
        @Override
        public Set<String> getQueueShards() {
            return Collections.singleton("rack");
        }

        @Override
        public String getCurrentShard() {
            return "rack";
        }

        @Override
        public String getShardForHost(Host host) {
            return "rack";
        }
    }
}
