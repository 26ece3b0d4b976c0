package tests

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/bradfitz/gomemcache/memcache"
)

// address is where the gateway listens, as the harness that started it says.
func address(t *testing.T, name string) string {
	t.Helper()
	value := os.Getenv(name)
	if value == "" {
		t.Fatalf("%s is not set; run these through tests/python/test_go.py", name)
	}
	return value
}

func memcachedClient(t *testing.T) *memcache.Client {
	t.Helper()
	client := memcache.New(address(t, "CASHEW_MEMCACHED"))
	client.Timeout = 5 * time.Second
	client.MaxIdleConns = 16
	t.Cleanup(func() { client.Close() })
	return client
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestMemcachedEverything(t *testing.T) {
	client := memcachedClient(t)
	check(t, client.Ping())
	check(t, client.Set(&memcache.Item{Key: "go-a", Value: []byte("1"), Flags: 7, Expiration: 100}))
	item, err := client.Get("go-a")
	check(t, err)
	equal(t, string(item.Value), "1")
	equal(t, item.Flags, uint32(7))

	item.Value = []byte("2")
	check(t, client.CompareAndSwap(item))
	if err := client.CompareAndSwap(item); !errors.Is(err, memcache.ErrCASConflict) {
		t.Fatalf("a second swap gave %v", err)
	}
	if err := client.Add(&memcache.Item{Key: "go-a"}); !errors.Is(err, memcache.ErrNotStored) {
		t.Fatalf("add of a present key gave %v", err)
	}
	check(t, client.Replace(&memcache.Item{Key: "go-a", Value: []byte("41")}))
	value, err := client.Increment("go-a", 1)
	check(t, err)
	equal(t, value, 42)
	value, err = client.Decrement("go-a", 40)
	check(t, err)
	equal(t, value, 2)
	check(t, client.Set(&memcache.Item{Key: "go-b", Value: []byte("b")}))
	check(t, client.Append(&memcache.Item{Key: "go-b", Value: []byte("c")}))
	check(t, client.Prepend(&memcache.Item{Key: "go-b", Value: []byte("a")}))
	item, err = client.GetAndTouch("go-b", 100)
	check(t, err)
	equal(t, string(item.Value), "abc")
	check(t, client.Touch("go-b", 100))
	check(t, client.Delete("go-b"))
	if _, err := client.Get("go-b"); !errors.Is(err, memcache.ErrCacheMiss) {
		t.Fatalf("a deleted key gave %v", err)
	}
	if err := client.Delete("go-b"); !errors.Is(err, memcache.ErrCacheMiss) {
		t.Fatalf("a second delete gave %v", err)
	}
}

func TestMemcachedMany(t *testing.T) {
	client := memcachedClient(t)
	var keys []string
	for n := range 500 {
		keys = append(keys, fmt.Sprintf("go-many-%d", n))
		if n%2 == 0 {
			check(t, client.Set(&memcache.Item{Key: keys[n], Value: []byte(fmt.Sprint(n))}))
		}
	}
	items, err := client.GetMulti(keys)
	check(t, err)
	equal(t, len(items), 250)
	for n := 0; n < 500; n += 2 {
		equal(t, string(items[keys[n]].Value), fmt.Sprint(n))
	}
}

func TestMemcachedBinaryAndLarge(t *testing.T) {
	client := memcachedClient(t)
	value := bytes.Repeat([]byte("\r\nEND\r\n\x00\xff\x80"), 90_000)
	check(t, client.Set(&memcache.Item{Key: "go-big", Value: value}))
	item, err := client.Get("go-big")
	check(t, err)
	if !bytes.Equal(item.Value, value) {
		t.Fatal("the value came back changed")
	}
	if err := client.Set(&memcache.Item{Key: "go-huge", Value: make([]byte, 2<<20)}); err == nil {
		t.Fatal("a value over memcached's limit was stored")
	}
	_, err = client.Get("go-big")
	check(t, err)
}

func TestMemcachedGoroutines(t *testing.T) {
	client := memcachedClient(t)
	var group sync.WaitGroup
	for worker := range 16 {
		group.Add(1)
		go func() {
			defer group.Done()
			for n := range 100 {
				key, value := fmt.Sprintf("go-%d-%d", worker, n), fmt.Sprint(worker*n)
				if err := client.Set(&memcache.Item{Key: key, Value: []byte(value)}); err != nil {
					t.Error(err)
					return
				}
				if item, err := client.Get(key); err != nil || string(item.Value) != value {
					t.Errorf("%s: got %v, %v", key, item, err)
					return
				}
			}
		}()
	}
	group.Wait()
}
