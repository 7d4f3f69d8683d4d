"""The ways of taking a mean over ranks. They differ where something rounds, or where a sum overflows."""

AVERAGINGS = ("sum then divide", "divide then sum", "multiply by reciprocal then sum")
ANY_WAY = "any way"  # the result of each of them is right
