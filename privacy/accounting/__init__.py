"""What releases cost together, and which sums no sequence of questions can overstep.

`closed_form` is exact for pure and Gaussian releases, `renyi` bounds DP-SGD, `limits` is the filter that stops
adaptive servers, `composition` the figure for a fixed sequence, `planning` both questions before a federation
starts, `second_opinion` another accountant's answer.
"""

from privacy.accounting.closed_form import delta_of, epsilon_of
from privacy.accounting.composition import epsilon_spent, is_exact, shown_epsilon
from privacy.accounting.limits import BudgetLimits, Spend, spend_of

__all__ = ["BudgetLimits", "Spend", "delta_of", "epsilon_of", "epsilon_spent", "is_exact", "shown_epsilon", "spend_of"]
