// Reads a ServiceMonitor on standard input, as Prometheus's operator does: fields that it does not have, and values of
// another type, are errors.
package main

import (
	"fmt"
	"io"
	"os"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"sigs.k8s.io/yaml"
)

func main() {
	if err := check(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func check() error {
	text, err := io.ReadAll(os.Stdin)
	if err != nil {
		return err
	}
	var read monitoring.ServiceMonitor
	if err := yaml.UnmarshalStrict(text, &read); err != nil {
		return err
	}
	if read.Kind != monitoring.ServiceMonitorsKind || len(read.Spec.Endpoints) == 0 {
		return fmt.Errorf("a ServiceMonitor with endpoints is wanted, not a %q", read.Kind)
	}
	return nil
}
