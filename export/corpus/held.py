"""Held text: fidelity and perplexity are measured on it, and nothing is ever fitted to it."""

HELD = (
    """The old lighthouse keeper counted the ships each evening and wrote their names in a ledger. When the fog came in from the \
north he lit the second lamp, rang the bell every minute, and waited until the last one had passed the reef. In forty years he had \
lost only two: a herring boat whose crew swam ashore, and a yacht that nobody ever came to ask about. His daughter wanted him to move \
to the town, where there was a doctor and a cinema, but he said that a man who has learned to sleep between bells cannot sleep in \
silence. In the end they agreed that she would come every Sunday with bread and newspapers, and that he would at least mend the roof.""",
    """def mean(values):
    if not values:
        raise ValueError("mean of no values")
    total = 0.0
    for value in values:
        total += value
    return total / len(values)


class Stack:
    def __init__(self):
        self.items = []

    def push(self, item):
        self.items.append(item)

    def pop(self):
        if not self.items:
            raise IndexError("pop from an empty stack")
        return self.items.pop()


if __name__ == "__main__":
    stack = Stack()
    for number in range(10):
        stack.push(number * number)
    print(mean(stack.items))
""",
    """To make bread you need flour, water, salt and yeast.

1. Mix 500 grams of flour with ten grams of salt.
2. Dissolve the yeast in 320 millilitres of warm water.
3. Knead the dough for ten minutes and let it rest for an hour.
4. Shape a loaf, cover it with a cloth and wait another forty minutes.
5. Bake it at 220 degrees for half an hour, until it sounds hollow.

Variations:
- Replace a third of the flour with rye.
- Add walnuts, olives or dried tomatoes before the second rest.
- For a soft crust, brush the loaf with milk; for a hard one, put a bowl of water in the oven.""",
    """"Where did you leave the keys?" asked Marta.

"On the table, I think. Next to the letter from the bank."

"There is no letter on the table. There is only your coffee, and it is cold."

Jonas came in from the garden and looked at the table as if it had betrayed him. "Then somebody took them both," he said.

"Who would take a letter from the bank?"

"Somebody who has never had one," said Jonas, and began to look under the chairs.""",
    """User: What is the difference between a virus and a bacterium?
Assistant: A bacterium is a living cell that can grow and divide on its own. A virus is much smaller, has no cell of its own, and can \
only multiply inside the cells of a host. That is why antibiotics, which attack parts of bacterial cells, do nothing against viruses.
User: So why do doctors sometimes prescribe antibiotics for a cold?
Assistant: They should not do it for the cold itself, which is caused by a virus. Sometimes, however, a bacterial infection follows, \
for example in the sinuses or in the lungs, and then an antibiotic can help.""",
    """Ein Fluss fließt selten gerade. Wo das Ufer weich ist, trägt er es ab, und auf der anderen Seite legt er den Sand wieder hin. So \
wandern seine Bögen über die Jahrhunderte durch das ganze Tal. Le matin, le marché sentait le pain chaud et le café ; les marchands \
criaient les prix des pommes et des poireaux, et personne ne semblait pressé. Los niños corrían por la plaza mientras sus abuelos \
jugaban al dominó bajo los árboles. Il treno per Bologna parte alle otto e un quarto dal terzo binario.""",
    """The boiling point of water falls by about one degree Celsius for every 300 metres of height. At the top \
of a mountain of 3,000 metres it is therefore close to 90 degrees, and potatoes take much longer to cook. The reason is \
pressure: a liquid boils when the pressure \
of its vapour equals the pressure of the air above it. If 12 potatoes take 20 minutes at sea level, then the same 12 potatoes take \
20 minutes too, not 240, because they cook side by side. 17 + 25 = 42, and 42 / 6 = 7.""",
    """{"name": "Orchard", "trees": [{"kind": "apple", "age": 12, "healthy": true}, {"kind": "pear", "age": 7, "healthy": false}]}

SELECT kind, COUNT(*) AS trees, AVG(age) FROM orchard WHERE healthy = 1 GROUP BY kind ORDER BY trees DESC;

| City | Country | Population |
|------|---------|------------|
| Oslo | Norway | 709,000 |
| Porto | Portugal | 232,000 |

$ git log --oneline | head -n 3
$ for file in *.txt; do wc -w "$file"; done""",
)
