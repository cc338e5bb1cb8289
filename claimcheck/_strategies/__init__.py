"""The strategies that come with claimcheck; the configuration names them, nobody imports them."""
