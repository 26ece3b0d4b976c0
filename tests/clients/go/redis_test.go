package tests

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// The most that any of these tests may take.
const patience = 30 * time.Second

func redisClient(t *testing.T, change func(*redis.Options)) (context.Context, *redis.Client) {
	t.Helper()
	options := &redis.Options{Addr: address(t, "CASHEW_REDIS"), Protocol: 2}
	if change != nil {
		change(options)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	client := redis.NewClient(options)
	t.Cleanup(func() {
		client.Close()
		cancel()
	})
	return ctx, client
}

func must[T any](value T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
}

func equal[T comparable](t *testing.T, got, want T) {
	t.Helper()
	if got != want {
		t.Fatalf("got %v, want %v", got, want)
	}
}

func TestRedisStrings(t *testing.T) {
	ctx, client := redisClient(t, nil)
	equal(t, must(client.Ping(ctx).Result())(t), "PONG")
	equal(t, must(client.Set(ctx, "go:a", "1", time.Minute).Result())(t), "OK")
	equal(t, must(client.Get(ctx, "go:a").Result())(t), "1")
	equal(t, must(client.IncrBy(ctx, "go:a", 41).Result())(t), 42)
	equal(t, must(client.TTL(ctx, "go:a").Result())(t), time.Minute)
	equal(t, must(client.Del(ctx, "go:a").Result())(t), 1)
	if err := client.Get(ctx, "go:a").Err(); !errors.Is(err, redis.Nil) {
		t.Fatalf("a missing key gave %v", err)
	}
}

func TestRedisDefaults(t *testing.T) {
	// go-redis opens with HELLO 3 and CLIENT SETINFO.
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	client := redis.NewClient(&redis.Options{Addr: address(t, "CASHEW_REDIS")})
	defer client.Close()
	equal(t, must(client.Set(ctx, "go:default", "1", 0).Result())(t), "OK")
	equal(t, must(client.Get(ctx, "go:default").Result())(t), "1")
}

// bothProtocols runs a test with RESP2 and with RESP3, each with keys of its own.
func bothProtocols(t *testing.T, test func(*testing.T, context.Context, *redis.Client, string)) {
	for _, protocol := range []int{2, 3} {
		t.Run(fmt.Sprintf("RESP%d", protocol), func(t *testing.T) {
			ctx, client := redisClient(t, func(o *redis.Options) { o.Protocol = protocol })
			test(t, ctx, client, fmt.Sprintf("go%d", protocol))
		})
	}
}

func TestRedisTransactions(t *testing.T) {
	bothProtocols(t, func(t *testing.T, ctx context.Context, client *redis.Client, at string) {
		key := "{" + at + "}a"
		client.Del(ctx, key)
		commands, err := client.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
			pipe.Set(ctx, key, 1, 0)
			pipe.Incr(ctx, key)
			pipe.ZAdd(ctx, "{"+at+"}z", redis.Z{Score: 1.5, Member: "a"})
			pipe.ZRangeWithScores(ctx, "{"+at+"}z", 0, -1)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		equal(t, commands[1].(*redis.IntCmd).Val(), 2)
		equal(t, commands[3].(*redis.ZSliceCmd).Val()[0], redis.Z{Score: 1.5, Member: "a"})

		// The first attempt finds the watched key changed, and the second is carried out.
		attempts := 0
		attempt := func(tx *redis.Tx) error {
			attempts++
			seen, err := tx.Get(ctx, key).Int()
			if err != nil {
				return err
			}
			if attempts == 1 {
				equal(t, must(client.Set(ctx, key, 40, 0).Result())(t), "OK")
			}
			_, err = tx.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
				pipe.Set(ctx, key, seen+2, 0)
				return nil
			})
			return err
		}
		if err := client.Watch(ctx, attempt, key); !errors.Is(err, redis.TxFailedErr) {
			t.Fatalf("a changed key gave %v", err)
		}
		if err := client.Watch(ctx, attempt, key); err != nil {
			t.Fatal(err)
		}
		equal(t, must(client.Get(ctx, key).Int())(t), 42)
	})
}

func TestRedisPubSub(t *testing.T) {
	bothProtocols(t, func(t *testing.T, ctx context.Context, client *redis.Client, at string) {
		subscriber := client.Subscribe(ctx, at+":news", at+":other")
		defer subscriber.Close()
		check(t, subscriber.PSubscribe(ctx, at+":n*"))
		for range 3 {
			if _, ok := must(subscriber.Receive(ctx))(t).(*redis.Subscription); !ok {
				t.Fatal("a message before the subscriptions")
			}
		}
		equal(t, must(client.Publish(ctx, at+":news", "1").Result())(t), 2)
		equal(t, must(client.Publish(ctx, at+":other", "2").Result())(t), 1)
		equal(t, must(client.Publish(ctx, at+":nobody's", "3").Result())(t), 1)
		heard := map[string]bool{}
		for range 4 {
			message := must(subscriber.ReceiveMessage(ctx))(t)
			heard[message.Pattern+" "+message.Channel+" "+message.Payload] = true
		}
		for _, want := range []string{
			" " + at + ":news 1", at + ":n* " + at + ":news 1", " " + at + ":other 2",
			at + ":n* " + at + ":nobody's 3",
		} {
			if !heard[want] {
				t.Fatalf("%q is not among %v", want, heard)
			}
		}
		equal(t, must(client.PubSubNumSub(ctx, at+":news").Result())(t)[at+":news"], 1)

		sharded := client.SSubscribe(ctx, at+":shard")
		defer sharded.Close()
		must(sharded.Receive(ctx))(t)
		equal(t, must(client.SPublish(ctx, at+":shard", "4").Result())(t), 1)
		equal(t, must(sharded.ReceiveMessage(ctx))(t).Payload, "4")
	})
}

func TestRedisBlocking(t *testing.T) {
	bothProtocols(t, func(t *testing.T, ctx context.Context, client *redis.Client, at string) {
		client.Del(ctx, at+":queue")
		client.Del(ctx, at+":stream")
		popped := make(chan []string, 1)
		go func() {
			words, err := client.BLPop(ctx, patience, at+":queue").Result()
			if err != nil {
				t.Error(err)
			}
			popped <- words
		}()
		equal(t, must(client.RPush(ctx, at+":queue", "job").Result())(t), 1)
		equal(t, strings.Join(<-popped, " "), at+":queue job")
		if err := client.Do(ctx, "BRPOP", at+":queue", "0.05").Err(); !errors.Is(err, redis.Nil) {
			t.Fatalf("nothing to pop gave %v", err)
		}
		go client.XAdd(ctx, &redis.XAddArgs{Stream: at + ":stream", ID: "1-1", Values: []any{"f", "v"}})
		streams := must(client.XRead(ctx, &redis.XReadArgs{Streams: []string{at + ":stream", "0"}, Block: patience}).Result())(t)
		equal(t, streams[0].Stream, at+":stream")
		equal(t, streams[0].Messages[0].Values["f"], any("v"))
	})
}

func TestRedisScan(t *testing.T) {
	bothProtocols(t, func(t *testing.T, ctx context.Context, client *redis.Client, at string) {
		const count = 300
		_, err := client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
			for n := range count {
				pipe.Set(ctx, fmt.Sprintf("%s:scan:%d", at, n), n, 0)
			}
			return nil
		})
		check(t, err)
		found := map[string]bool{}
		scan := client.Scan(ctx, 0, at+":scan:*", 20).Iterator()
		for scan.Next(ctx) {
			found[scan.Val()] = true
		}
		check(t, scan.Err())
		equal(t, len(found), count)
		equal(t, len(must(client.Keys(ctx, at+":scan:*").Result())(t)), count)
	})
}

func TestRedisScripts(t *testing.T) {
	bothProtocols(t, func(t *testing.T, ctx context.Context, client *redis.Client, at string) {
		// Of every key's server: by its digest first, which is not known there.
		script := redis.NewScript("return {KEYS[1], ARGV[1], 7} -- " + at)
		for n := range 30 {
			key := fmt.Sprintf("%d:%s:script", n, at)
			got := must(script.Run(ctx, client, []string{key}, "a").Slice())(t)
			equal(t, fmt.Sprint(got), fmt.Sprintf("[%s a 7]", key))
		}
		equal(t, must(script.Exists(ctx, client).Result())(t)[0], true)
		equal(t, must(script.Load(ctx, client).Result())(t), script.Hash())
	})
}

func TestRedisDatabases(t *testing.T) {
	bothProtocols(t, func(t *testing.T, ctx context.Context, client *redis.Client, at string) {
		_, three := redisClient(t, func(o *redis.Options) { o.DB = 3 })
		client.Set(ctx, at+":db", "0", 0)
		three.Set(ctx, at+":db", "3", 0)
		equal(t, must(client.Get(ctx, at+":db").Result())(t), "0")
		equal(t, must(three.Get(ctx, at+":db").Result())(t), "3")
	})
}

func TestRedisManyKeys(t *testing.T) {
	ctx, client := redisClient(t, nil)
	var keys []string
	var pairs []any
	for n := range 1000 {
		keys = append(keys, fmt.Sprintf("go:many:%d", n))
		pairs = append(pairs, keys[n], n)
	}
	equal(t, must(client.MSet(ctx, pairs...).Result())(t), "OK")
	values := must(client.MGet(ctx, keys...).Result())(t)
	for n, value := range values {
		equal(t, value, any(fmt.Sprint(n)))
	}
	equal(t, must(client.Exists(ctx, keys...).Result())(t), 1000)
	equal(t, must(client.Unlink(ctx, keys...).Result())(t), 1000)
}

func TestRedisTypes(t *testing.T) {
	ctx, client := redisClient(t, nil)
	client.Del(ctx, "go:h", "go:l", "go:s", "go:z", "go:x")
	equal(t, must(client.HSet(ctx, "go:h", "a", 1, "b", 2).Result())(t), 2)
	equal(t, must(client.HGetAll(ctx, "go:h").Result())(t)["b"], "2")
	equal(t, must(client.RPush(ctx, "go:l", "a", "b", "c").Result())(t), 3)
	equal(t, strings.Join(must(client.LRange(ctx, "go:l", 0, -1).Result())(t), ""), "abc")
	equal(t, must(client.SAdd(ctx, "go:s", "a", "b").Result())(t), 2)
	equal(t, must(client.ZAdd(ctx, "go:z", redis.Z{Score: 1.5, Member: "a"}).Result())(t), 1)
	equal(t, must(client.ZScore(ctx, "go:z", "a").Result())(t), 1.5)
	equal(t, must(client.XAdd(ctx, &redis.XAddArgs{Stream: "go:x", ID: "1-1", Values: []any{"f", "v"}}).Result())(t), "1-1")
	equal(t, len(must(client.XRange(ctx, "go:x", "-", "+").Result())(t)), 1)
	script := redis.NewScript("return redis.call('get', KEYS[1])")
	client.Set(ctx, "go:script", "v", 0)
	equal(t, must(script.Run(ctx, client, []string{"go:script"}).Result())(t), any("v"))
	fields, _, err := client.HScan(ctx, "go:h", 0, "*", 10).Result()
	if err != nil {
		t.Fatal(err)
	}
	equal(t, len(fields), 4)
}

func TestRedisPipeline(t *testing.T) {
	ctx, client := redisClient(t, nil)
	commands, err := client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for n := range 500 {
			key := fmt.Sprintf("go:pipe:%d", n)
			pipe.Set(ctx, key, n, 0)
			pipe.MGet(ctx, key, "go:none")
			pipe.Get(ctx, key)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for n := range 500 {
		pair := commands[3*n+1].(*redis.SliceCmd).Val()
		equal(t, pair[0], any(fmt.Sprint(n)))
		equal(t, pair[1], nil)
		equal(t, commands[3*n+2].(*redis.StringCmd).Val(), fmt.Sprint(n))
	}
}

func TestRedisErrorsKeepTheConnection(t *testing.T) {
	ctx, client := redisClient(t, func(o *redis.Options) { o.PoolSize = 1 })
	client.Set(ctx, "go:text", "abc", 0)
	if err := client.Incr(ctx, "go:text").Err(); err == nil || !strings.Contains(err.Error(), "not an integer") {
		t.Fatalf("INCR of text gave %v", err)
	}
	if err := client.Do(ctx, "NOSUCH", "a").Err(); err == nil || !strings.HasPrefix(err.Error(), "ERR unknown command 'NOSUCH'") {
		t.Fatalf("an unknown command gave %v", err)
	}
	equal(t, must(client.Get(ctx, "go:text").Result())(t), "abc")
	equal(t, client.PoolStats().TotalConns, 1)
}

func TestRedisPoolOfGoroutines(t *testing.T) {
	ctx, client := redisClient(t, func(o *redis.Options) { o.PoolSize = 16; o.ClientName = "gophers" })
	var group sync.WaitGroup
	for worker := range 32 {
		group.Add(1)
		go func() {
			defer group.Done()
			for n := range 100 {
				key, value := fmt.Sprintf("go:pool:%d:%d", worker, n), fmt.Sprint(worker*n)
				if err := client.Set(ctx, key, value, 0).Err(); err != nil {
					t.Error(err)
					return
				}
				if got, err := client.Get(ctx, key).Result(); err != nil || got != value {
					t.Errorf("%s: got %q, %v", key, got, err)
					return
				}
			}
		}()
	}
	group.Wait()
	equal(t, must(client.ClientGetName(ctx).Result())(t), "gophers")
}
