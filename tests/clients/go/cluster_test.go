package tests

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"
)

// bothOfCluster runs a test with RESP2 and with RESP3, each with keys of its own.
func bothOfCluster(t *testing.T, test func(*testing.T, context.Context, *redis.ClusterClient, string)) {
	if os.Getenv("CASHEW_NODES") == "" {
		t.Skip("CASHEW_NODES is not set: the gateway does not pose as a cluster")
	}
	for _, protocol := range []int{2, 3} {
		t.Run(fmt.Sprintf("RESP%d", protocol), func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			client := redis.NewClusterClient(&redis.ClusterOptions{
				Addrs: []string{address(t, "CASHEW_REDIS")}, Protocol: protocol, MaxRedirects: -1,
			})
			defer client.Close()
			test(t, ctx, client, fmt.Sprintf("goc%d", protocol))
		})
	}
}

func TestClusterTopology(t *testing.T) {
	bothOfCluster(t, func(t *testing.T, ctx context.Context, client *redis.ClusterClient, _ string) {
		var lock sync.Mutex
		var found []string
		err := client.ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) error {
			lock.Lock()
			defer lock.Unlock()
			found = append(found, node.Options().Addr)
			return node.Ping(ctx).Err()
		})
		if err != nil {
			t.Fatal(err)
		}
		slices.Sort(found)
		wanted := strings.Split(os.Getenv("CASHEW_NODES"), ",")
		slices.Sort(wanted)
		equal(t, strings.Join(found, ","), strings.Join(wanted, ","))
		shards := must(client.ClusterShards(ctx).Result())(t)
		equal(t, len(shards), len(wanted))
		links := must(client.ClusterLinks(ctx).Result())(t)
		equal(t, len(links), 0)
	})
}

func TestClusterKeys(t *testing.T) {
	bothOfCluster(t, func(t *testing.T, ctx context.Context, client *redis.ClusterClient, at string) {
		for n := range 200 {
			equal(t, must(client.Set(ctx, fmt.Sprint(at, n), n, 0).Result())(t), "OK")
		}
		for n := range 200 {
			equal(t, must(client.Get(ctx, fmt.Sprint(at, n)).Int())(t), n)
		}
		a, b := "{"+at+"}a", "{"+at+"}b"
		equal(t, must(client.MSet(ctx, a, "1", b, "2").Result())(t), "OK")
		equal(t, fmt.Sprint(must(client.MGet(ctx, a, b).Result())(t)), "[1 2]")
		if err := client.Get(ctx, at+"none").Err(); !errors.Is(err, redis.Nil) {
			t.Fatalf("a missing key gave %v", err)
		}
	})
}

func TestClusterPipeline(t *testing.T) {
	bothOfCluster(t, func(t *testing.T, ctx context.Context, client *redis.ClusterClient, at string) {
		commands, err := client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
			for n := range 300 {
				pipe.Set(ctx, fmt.Sprint(at, "p", n), n, 0)
				pipe.Get(ctx, fmt.Sprint(at, "p", n))
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		for n := range 300 {
			equal(t, commands[2*n+1].(*redis.StringCmd).Val(), fmt.Sprint(n))
		}
	})
}

func TestClusterTransactions(t *testing.T) {
	bothOfCluster(t, func(t *testing.T, ctx context.Context, client *redis.ClusterClient, at string) {
		key := "{" + at + "}a"
		client.Del(ctx, key)
		commands, err := client.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
			pipe.Set(ctx, key, 1, 0)
			pipe.Incr(ctx, key)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		equal(t, commands[1].(*redis.IntCmd).Val(), 2)
		err = client.Watch(ctx, func(tx *redis.Tx) error {
			equal(t, must(client.Set(ctx, key, 40, 0).Result())(t), "OK")
			_, err := tx.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
				return pipe.Set(ctx, key, 0, 0).Err()
			})
			return err
		}, key)
		if !errors.Is(err, redis.TxFailedErr) {
			t.Fatalf("a changed key gave %v", err)
		}
	})
}

func TestClusterPubSub(t *testing.T) {
	bothOfCluster(t, func(t *testing.T, ctx context.Context, client *redis.ClusterClient, at string) {
		all := client.PSubscribe(ctx, at+":n*")
		defer all.Close()
		shard := client.SSubscribe(ctx, at+":shard")
		defer shard.Close()
		must(all.Receive(ctx))(t)
		must(shard.Receive(ctx))(t)
		equal(t, must(client.Publish(ctx, at+":news", "1").Result())(t), 1)
		equal(t, must(all.ReceiveMessage(ctx))(t).Payload, "1")
		equal(t, must(client.SPublish(ctx, at+":shard", "2").Result())(t), 1)
		equal(t, must(shard.ReceiveMessage(ctx))(t).Payload, "2")
	})
}

// Every gateway has all keys, so that one of them tells of all.
func TestClusterScan(t *testing.T) {
	bothOfCluster(t, func(t *testing.T, ctx context.Context, client *redis.ClusterClient, at string) {
		for n := range 300 {
			client.Set(ctx, fmt.Sprint(at, ":scan:", n), "v", 0)
		}
		err := client.ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) error {
			found := map[string]bool{}
			scan := node.Scan(ctx, 0, at+":scan:*", 20).Iterator()
			for scan.Next(ctx) {
				found[scan.Val()] = true
			}
			if len(found) != 300 {
				return fmt.Errorf("%d keys: %w", len(found), scan.Err())
			}
			return scan.Err()
		})
		if err != nil {
			t.Fatal(err)
		}
	})
}

// READONLY is what it says to every node.
func TestClusterReaders(t *testing.T) {
	bothOfCluster(t, func(t *testing.T, ctx context.Context, client *redis.ClusterClient, at string) {
		options := *client.Options()
		options.ReadOnly = true
		options.RouteRandomly = true
		reader := redis.NewClusterClient(&options)
		defer reader.Close()
		equal(t, must(client.Set(ctx, at+"r", "1", 0).Result())(t), "OK")
		equal(t, must(reader.Get(ctx, at+"r").Result())(t), "1")
	})
}
