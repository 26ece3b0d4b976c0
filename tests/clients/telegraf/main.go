// Prints what Telegraf's plugin for twemproxy finds at an address, as a line of JSON for each point.
package main

import (
	"encoding/json"
	"log"
	"os"
	"time"

	"github.com/influxdata/telegraf"
	"github.com/influxdata/telegraf/plugins/inputs/twemproxy"
)

type point struct {
	Name   string            `json:"name"`
	Tags   map[string]string `json:"tags"`
	Fields map[string]any    `json:"fields"`
}

// The plugin calls no other method.
type printer struct {
	telegraf.Accumulator
	lines *json.Encoder
}

func (p printer) AddFields(name string, fields map[string]any, tags map[string]string, _ ...time.Time) {
	if err := p.lines.Encode(point{name, tags, fields}); err != nil {
		log.Fatal(err)
	}
}

func main() {
	plugin := twemproxy.Twemproxy{Addr: os.Args[1], Pools: os.Args[2:]}
	if err := plugin.Gather(printer{lines: json.NewEncoder(os.Stdout)}); err != nil {
		log.Fatal(err)
	}
}
