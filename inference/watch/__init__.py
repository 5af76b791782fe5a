"""What an operator watches: unusual spending, health, errors, and the requests of this moment."""
