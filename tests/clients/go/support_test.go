// Package clients calls every operation of the Go client libraries once. Run by `make test-go`.
package clients

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/runtime"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/streaming"
)

var ctx = context.Background()

// Retries would hide an answer that a client does not understand.
var once = azcore.ClientOptions{Retry: policy.RetryOptions{MaxRetries: -1}}

// outcome is what a call of a client returned.
type outcome[T any] struct {
	result T
	err    error
}

func called[T any](result T, err error) outcome[T] {
	return outcome[T]{result, err}
}

// as reports the call under the name of its operation and returns its result.
func (o outcome[T]) as(t *testing.T, operation string) T {
	t.Helper()
	t.Run(operation, func(t *testing.T) {
		if o.err != nil {
			t.Error(o.err)
		}
	})
	return o.result
}

// refused reports a call that the server must refuse with a code.
func refused[T any](t *testing.T, operation, code string, o outcome[T]) {
	t.Helper()
	t.Run(operation, func(t *testing.T) {
		if o.err == nil || !strings.Contains(o.err.Error(), code) {
			t.Errorf("wanted %s, got %v", code, o.err)
		}
	})
}

// firstPage reads the first page of a listing.
func firstPage[T any](pager *runtime.Pager[T]) outcome[T] {
	return called(pager.NextPage(ctx))
}

func expect[T comparable](t *testing.T, what string, got, wanted T) {
	t.Helper()
	if got != wanted {
		t.Errorf("%s: got %v, wanted %v", what, got, wanted)
	}
}

// expectBody reads a download to its end.
func expectBody(t *testing.T, body io.ReadCloser, wanted string) {
	t.Helper()
	if body == nil {
		t.Error("no body")
		return
	}
	defer body.Close()
	got, err := io.ReadAll(body)
	if err != nil {
		t.Error(err)
	}
	expect(t, "the body", string(got), wanted)
}

func body(text string) io.ReadSeekCloser {
	return streaming.NopCloser(bytes.NewReader([]byte(text)))
}

func to[T any](value T) *T {
	return &value
}

func unique(prefix string) string {
	var random [8]byte
	_, _ = rand.Read(random[:])
	return prefix + hex.EncodeToString(random[:])
}

func connection(t *testing.T) string {
	t.Helper()
	value := os.Getenv("CONNECTION")
	if value == "" {
		t.Fatal("CONNECTION is not set: run this by `make test-go`")
	}
	return value
}

// issued is the bearer token that the run was given.
type issued struct{}

func (issued) GetToken(context.Context, policy.TokenRequestOptions) (azcore.AccessToken, error) {
	return azcore.AccessToken{Token: os.Getenv("TOKEN"), ExpiresOn: time.Now().Add(time.Hour)}, nil
}

func soon() time.Time {
	return time.Now().UTC().Add(time.Hour).Truncate(time.Second)
}

// secondaryOf returns the address of the account's secondary location.
func secondaryOf(primary string) string {
	return strings.TrimSuffix(primary, "/") + "-secondary/"
}

// fromConnection returns one value of the connection string.
func fromConnection(key string) string {
	for _, part := range strings.Split(os.Getenv("CONNECTION"), ";") {
		if value, found := strings.CutPrefix(part, key+"="); found {
			return value
		}
	}
	return ""
}
