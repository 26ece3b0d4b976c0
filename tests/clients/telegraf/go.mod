module cashew-telegraf

go 1.24

require github.com/influxdata/telegraf v1.28.5
