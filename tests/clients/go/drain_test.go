package tests

import (
	"context"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// Asks all the time until a file is there, while the gateway drains, and says how many requests were
// answered and how many were not.
func TestDrain(t *testing.T) {
	address := os.Getenv("CASHEW_DRAIN")
	if address == "" {
		t.Skip("CASHEW_DRAIN is not set")
	}
	mode := maintnotifications.Mode(os.Getenv("CASHEW_DRAIN_MODE"))
	client := redis.NewClient(&redis.Options{
		Addr:       address,
		Protocol:   3,
		PoolSize:   10,
		MaxRetries: -1,
		MaintNotificationsConfig: &maintnotifications.Config{
			Mode:         mode,
			EndpointType: maintnotifications.EndpointTypeInternalIP,
		},
	})
	defer client.Close()
	over := make(chan struct{})
	go func() {
		defer close(over)
		// A minute is the most that this may take.
		for begin := time.Now(); time.Since(begin) < time.Minute; time.Sleep(20 * time.Millisecond) {
			if _, err := os.Stat(os.Getenv("CASHEW_DRAIN_END")); err == nil {
				return
			}
		}
	}()
	var done, errors atomic.Int64
	var first atomic.Pointer[error]
	var wait sync.WaitGroup
	for worker := range 6 {
		wait.Add(1)
		go func() {
			defer wait.Done()
			ctx, key := context.Background(), fmt.Sprintf("go:drain:%d", worker)
			for {
				select {
				case <-over:
					return
				default:
				}
				err := client.Set(ctx, key, "1", 0).Err()
				if err == nil {
					err = client.Get(ctx, key).Err()
				}
				if err == nil {
					done.Add(2)
					continue
				}
				errors.Add(1)
				first.CompareAndSwap(nil, &err)
				time.Sleep(time.Millisecond)
			}
		}()
	}
	wait.Wait()
	if err := first.Load(); err != nil {
		fmt.Println("first error:", *err)
	}
	fmt.Println("done", done.Load(), "errors", errors.Load())
}
