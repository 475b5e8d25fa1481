// A bank account in a table. Several clients withdraw from it at once, and it is never overdrawn.
//
//	go run -C examples/table_etag_retry .
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/data/aztables"
)

// The development account that `make serve` serves. Its key is public.
const development = "DefaultEndpointsProtocol=http;AccountName=devstoreaccount1;" +
	"AccountKey=Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==;" +
	"TableEndpoint=http://127.0.0.1:10002/devstoreaccount1"

const (
	clients     = 4
	withdrawals = 10
	amount      = 5
	deposit     = 150
)

var errInsufficientFunds = errors.New("insufficient funds")

type account struct {
	aztables.Entity
	Balance int32
}

// lost counts the attempts that failed because another client was faster.
var lost atomic.Int32

// withdraw reads the balance, decides, and writes only if the entity still has the version that was read.
func withdraw(ctx context.Context, table *aztables.Client) error {
	for {
		read, err := table.GetEntity(ctx, "customers", "alice", nil)
		if err != nil {
			return err
		}
		var alice account
		if err := json.Unmarshal(read.Value, &alice); err != nil {
			return err
		}
		if alice.Balance < amount {
			return errInsufficientFunds
		}
		alice.Balance -= amount
		changed, err := json.Marshal(alice)
		if err != nil {
			return err
		}
		_, err = table.UpdateEntity(ctx, changed, &aztables.UpdateEntityOptions{
			IfMatch: &read.ETag, UpdateMode: aztables.UpdateModeReplace,
		})
		var refusal *azcore.ResponseError
		if errors.As(err, &refusal) && refusal.StatusCode == http.StatusPreconditionFailed {
			lost.Add(1)
			continue
		}
		return err
	}
}

func run(ctx context.Context, table *aztables.Client) error {
	alice := account{Entity: aztables.Entity{PartitionKey: "customers", RowKey: "alice"}, Balance: deposit}
	encoded, err := json.Marshal(alice)
	if err != nil {
		return err
	}
	if _, err := table.AddEntity(ctx, encoded, nil); err != nil {
		return err
	}

	var succeeded, refused atomic.Int32
	var running sync.WaitGroup
	for range clients {
		running.Go(func() {
			for range withdrawals {
				switch err := withdraw(ctx, table); {
				case err == nil:
					succeeded.Add(1)
				case errors.Is(err, errInsufficientFunds):
					refused.Add(1)
				default:
					log.Fatal(err)
				}
			}
		})
	}
	running.Wait()
	fmt.Printf("%d withdrawals of %d succeeded, %d were refused; %d attempts were repeated\n",
		succeeded.Load(), amount, refused.Load(), lost.Load())

	read, err := table.GetEntity(ctx, "customers", "alice", nil)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(read.Value, &alice); err != nil {
		return err
	}
	fmt.Printf("balance: %d\n", alice.Balance)
	return nil
}

func main() {
	connection := os.Getenv("AZURE_STORAGE_CONNECTION_STRING")
	if connection == "" {
		connection = development
	}
	service, err := aztables.NewServiceClientFromConnectionString(connection, nil)
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	name := fmt.Sprintf("example%d", time.Now().UnixNano())
	if _, err := service.CreateTable(ctx, name, nil); err != nil {
		log.Fatal(err)
	}
	err = run(ctx, service.NewClient(name))
	if _, cleanup := service.DeleteTable(ctx, name, nil); err == nil {
		err = cleanup
	}
	if err != nil {
		log.Fatal(err)
	}
}
