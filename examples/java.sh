#!/bin/sh
# The JVM sizes its heap and its threads by the machine unless it is told to.
exec pyplaypen run --limit memory_bytes=3GiB --limit process_count=48 -- java -Xmx256m -XX:+UseSerialGC Hello.java
