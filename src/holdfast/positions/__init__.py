"""Where every source stands, in one transaction with what it fed. No Spark in it, and no JVM."""
