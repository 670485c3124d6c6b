"""Other people's queues: where a bridge takes jobs from, and where it puts their results. Knows no store.

One module per broker, each imported when it is used: `redis_list`, `rabbitmq`, `sqs`. `intake` turns a message into a
job, `broker` says what each of them must promise.
"""
