"""When does prediction pay: coasting against waiting and against training less, at equal bytes."""
