"""What the SQL stores share: every operation once, as reads and writes by name.

A dialect (SQLite, PostgreSQL) brings the statements, the connection and the locks; the order of steps, and the
rules they follow, are here and in core. So the two stores cannot drift apart.
"""
