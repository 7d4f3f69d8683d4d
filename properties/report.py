"""temp"""
def report(law, trial, broken):
    return f"{broken}\n{[r.error for r in broken.outcome if r.error]}"[:3000]
