"""What comparisons with peers share: places to run in, freewheel's own arms, the peers' arms."""
