"""Message queues outside Leasekeeper: a bridge takes jobs from them, and puts results there. Knows no store.

One module per broker, each imported when it is used: `redis_list`, `rabbitmq`, `sqs`. `intake` turns a message into a
job, `broker` has the protocol that each module implements.
"""
