"""Short texts by which a tokenizer is measured: a few for each class of characters that estimates tell apart."""

from __future__ import annotations

PROSE = (
    "The house stood at the end of a narrow road, and nobody had lived there since the old doctor left for the "
    "coast. In winter the wind came over the fields and shook every window; in summer the garden grew so high that "
    "children lost their way in it. When the new owners arrived they found a box of letters under the stairs, "
    "written in a careful hand, which told the history of the family from the first year to the last.",
    "Please summarize the following report for a customer who has no technical background. Mention what happened, "
    "when it was noticed, which services were affected and what we are going to change so that it cannot happen "
    "again. Keep the answer short and friendly, and do not promise anything about refunds.",
    "Refrangibility of luminous rays depends upon the obliquity of incidence; quantitative spectroscopy therefore "
    "presupposes calibrated apertures, homogeneous collimation, and thermally stabilised, achromatic objectives.",
)
CODE = (
    "def find_user(self, name, *, strict=False):\n    rows = [row for row in self.rows if row['name'] == name]\n"
    '    if strict and len(rows) != 1:\n        raise LookupError(f"{name!r}: {len(rows)} rows")\n'
    "    return rows[0] if rows else None\n",
    'for (let i = 0; i < items.length; i++) {\n  if (!seen[items[i].id]) {\n    out.push({"id": items[i].id, '
    '"ok": true, "tags": []});\n  }\n}\nconsole.log(JSON.stringify(out));\n',
    '<a href="{{ url }}" class="button button--{{ kind }}">{% if icon %}<i class="{{ icon }}"></i>{% endif %}</a>\n',
)
DIGITS = (
    "8140 27 593021 77 1948 30265 4 912 660713 85 2203 71946 18 5059 34 970128 6 4471 3390 12 58806 201",
)
LATIN = (
    "Der Bürgermeister erklärte, dass die neuen Straßen früher fertig würden als ursprünglich geplant, weil das "
    "Wetter im März außergewöhnlich günstig gewesen sei.",
    "Après la réunion, les élèves ont préféré rentrer à pied, même si la météo annonçait de fortes pluies à "
    "l'arrivée de la soirée.",
    "Właściciel sklepu powiedział, że każdą książkę można zwrócić w ciągu trzydziestu dni, jeśli nie została "
    "zniszczona.",
    "Önümüzdeki hafta müşterilerimize gönderilecek değişiklikler hakkında kısa bir açıklama hazırlıyoruz.",
)
TWO_BYTE = (
    "Новые владельцы нашли под лестницей коробку с письмами, в которых была рассказана история семьи с первого "
    "года до последнего.",
    "Οι νέοι ιδιοκτήτες βρήκαν ένα κουτί με γράμματα κάτω από τη σκάλα του παλιού σπιτιού.",
    "وجد المالكون الجدد صندوقا من الرسائل تحت السلم، وفيها تاريخ العائلة منذ السنة الأولى حتى الأخيرة.",
    "הבעלים החדשים מצאו קופסה של מכתבים מתחת למדרגות של הבית הישן.",
)
THREE_BYTE = (
    "नए मालिकों को सीढ़ियों के नीचे पत्रों का एक डिब्बा मिला जिसमें परिवार का पूरा इतिहास लिखा था।",
    "เจ้าของใหม่พบกล่องจดหมายอยู่ใต้บันไดของบ้านหลังเก่าที่ปลายถนน",
)
CJK = (
    "新的主人在楼梯下面发现了一箱信件,里面用工整的字迹记录了这个家族从第一年到最后一年的历史。请用简短的语言总结下面的报告。",
    "新しい持ち主は階段の下で手紙の入った箱を見つけた。そこには家族の歴史が丁寧な字で書かれていた。",
)
HANGUL = (
    "새 주인은 계단 아래에서 편지 상자를 발견했는데, 거기에는 첫해부터 마지막 해까지 가족의 역사가 적혀 있었다.",
)
FOUR_BYTE = ("\U0001f600\U0001f680\U0001f389\U0001f4c8\U0001f64f\U0001f525\U0001f40d\U0001f697\U0001f355",)
