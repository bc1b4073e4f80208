"""What to change: remedies, what-ifs, plans.

It takes an estimate or a question and gives other run files with their figures and seconds. It may
import `estimates` and what is below.
"""
