"""Every family of weft, under the options that change its mathematics. Add a family: one line."""

import weft

FAMILIES = {
    "mean-field": weft.MeanField(),
    "mean-field, bounded": weft.MeanField(max_scale=2.0),
    "1-tied": weft.KTied(rank=1),
    "2-tied": weft.KTied(rank=2),
    "3-tied": weft.KTied(rank=3),
    "2-tied, bounded": weft.KTied(rank=2, max_scale=2.0),
    "point": weft.Point(),
}
