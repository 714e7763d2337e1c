"""Controls running Envoys: keeps one alive, and feeds any number over aggregated, incremental xDS ("xDS protocol").

`cache` holds the configuration in force, `stream` the exchange with one proxy, and `server` all exchanges. `accesslog`
receives the decisions of proxies. `responses` watches lists and open streams; `lists` cuts the lists to their readers.
"""
