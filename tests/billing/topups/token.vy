# pragma version 0.4.3
# A test token, and what a hostile contract can do around one.

event Transfer:
    sender: indexed(address)
    receiver: indexed(address)
    value: uint256

event Approval:
    owner: indexed(address)
    spender: indexed(address)
    value: uint256

event Note:
    text: String[32]

name: public(constant(String[16])) = "Test Dollar"
symbol: public(constant(String[8])) = "TUSD"
decimals: public(constant(uint8)) = 6

totalSupply: public(uint256)
balanceOf: public(HashMap[address, uint256])
allowance: public(HashMap[address, HashMap[address, uint256]])


@deploy
def __init__(supply: uint256):
    self.totalSupply = supply
    self.balanceOf[msg.sender] = supply
    log Transfer(sender=empty(address), receiver=msg.sender, value=supply)


@internal
def _move(sender: address, receiver: address, units: uint256):
    self.balanceOf[sender] -= units
    self.balanceOf[receiver] += units
    log Transfer(sender=sender, receiver=receiver, value=units)


@external
def transfer(receiver: address, units: uint256) -> bool:
    self._move(msg.sender, receiver, units)
    return True


@external
def transferFrom(sender: address, receiver: address, units: uint256) -> bool:
    self.allowance[sender][msg.sender] -= units
    self._move(sender, receiver, units)
    return True


@external
def approve(spender: address, units: uint256) -> bool:
    self.allowance[msg.sender][spender] = units
    log Approval(owner=msg.sender, spender=spender, value=units)
    return True


@external
def pay_twice(receiver: address, first: uint256, second: uint256):
    """Two payments in one transaction, with another log before each."""
    log Note(text="first")
    self._move(msg.sender, receiver, first)
    log Note(text="second")
    self._move(msg.sender, receiver, second)


@external
def pretend(sender: address, receiver: address, units: uint256):
    """Says that somebody paid, and moves nothing: any other contract can do this."""
    log Transfer(sender=sender, receiver=receiver, value=units)
