"""Calibration text: quantisers that weigh errors by the activations see these. Never measured on."""

CALIBRATION = (
    """Long before there were clocks in every pocket, the people of the valley told the time by the shadow of the church tower. Noon was \
when it touched the well, and the market closed when it reached the baker's door. In winter the shadow was long and the days were \
short, so that everybody worked faster and complained more. A travelling salesman once offered the mayor a clock with two faces and a \
bell. The mayor asked what it cost, what it ate, and who would climb up to feed it. When he heard that it had to be wound every \
evening by a strong man, he laughed and said that the sun had never asked for wages. The salesman left the next morning, but he left \
late, because the sky was covered with clouds and nobody could tell him the hour.""",
    """Photosynthesis is the process by which green plants, algae and some bacteria turn light into chemical energy. Carbon dioxide enters \
the leaf through small openings, water comes up from the roots, and with the energy of the light both become sugar and oxygen. The \
reactions happen in two stages. In the first, light splits water and charges molecules that carry energy. In the second, these \
molecules drive a cycle that builds sugar from carbon dioxide. Almost all food on Earth, and nearly all of the oxygen in the air, goes \
back to this process. Its efficiency is modest: of the sunlight that falls on a field, a crop stores only about one or two per cent.""",
    """import json
import pathlib
from dataclasses import dataclass


@dataclass
class Account:
    owner: str
    balance: float = 0.0

    def deposit(self, amount: float) -> None:
        if amount <= 0:
            raise ValueError("amount must be positive")
        self.balance += amount

    def withdraw(self, amount: float) -> None:
        if amount > self.balance:
            raise ValueError(f"{self.owner} has only {self.balance:.2f}")
        self.balance -= amount


def load(path: str) -> list[Account]:
    data = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
    return [Account(entry["owner"], entry.get("balance", 0.0)) for entry in data]


def total(accounts):
    return sum(account.balance for account in accounts)
""",
    """function debounce(callback, delay) {
  let timer = null;
  return (...args) => {
    clearTimeout(timer);
    timer = setTimeout(() => callback(...args), delay);
  };
}

const form = document.querySelector("#search");
form.addEventListener("input", debounce(async (event) => {
  const response = await fetch(`/api/search?q=${encodeURIComponent(event.target.value)}`);
  if (!response.ok) {
    console.error("search failed", response.status);
    return;
  }
  const results = await response.json();
  render(results.items.map((item) => ({ title: item.title, url: item.url })));
}, 250));

int binary_search(const int *values, int count, int wanted) {
    int low = 0, high = count - 1;
    while (low <= high) {
        int middle = low + (high - low) / 2;
        if (values[middle] == wanted) return middle;
        if (values[middle] < wanted) low = middle + 1; else high = middle - 1;
    }
    return -1;
}
""",
    """User: Can you help me plan a three-day trip to Lisbon?
Assistant: Of course! Here is a simple plan:

**Day 1: The old town**
- Morning: walk through Alfama and visit the castle.
- Afternoon: take tram 28 to Graça for the view.
- Evening: dinner with fado music.

**Day 2: Belém**
- Morning: the monastery and the tower.
- Afternoon: a pastry at the famous bakery, then a museum.

**Day 3: Sintra**
- Take the train from Rossio station; it needs about 40 minutes.
- Visit one palace in the morning and walk in the park after lunch.

User: How much money will I need?
Assistant: Not counting the flight and the hotel, about 60 to 80 euros per day are enough for food, tickets and transport.
User: Thanks! One last question: should I rent a car?
Assistant: No. Parking is difficult, the streets are narrow, and public transport is cheap and reliable.""",
    """User: Write a short poem about rain.
Assistant: The rain comes down on roof and street,
It drums its small and silver beat,
It washes dust from every leaf
And lends the thirsty roots relief.

User: Explain recursion to a child.
Assistant: Imagine a box with a smaller box inside. You open it and find an even smaller one, and so on, until you reach a box that is \
empty. Then you close them all again, one after the other. A function that calls itself does the same: it opens smaller and smaller \
boxes until there is nothing left to open.

User: What is 15% of 80?
Assistant: 15% of 80 is 12, because 10% is 8 and 5% is 4, and 8 + 4 = 12.""",
    """Dear Ms Okafor,

thank you for your letter of 3 March. We are sorry that the parcel arrived damaged. Please send us a photograph of the box and of its \
content; we will then replace the broken cups free of charge. You do not need to return anything.

If you prefer a refund, please let us know the number of your order (it begins with the letters AB) and we will transfer the money \
within five working days.

Yours sincerely,
Peter Lindqvist
Customer service""",
    """Im Herbst sammelte die Großmutter Pilze im Wald hinter dem Haus. Sie kannte jede Sorte beim Namen und wusste, welche man essen darf.\
 „Die meisten Fehler", sagte sie, „macht man aus Hunger oder aus Eile." Abends putzte sie die Pilze am Küchentisch und erzählte vom \
Krieg, von ihrem Bruder und von einem Hund, der Türen öffnen konnte. La bibliothèque du quartier ferme à dix-neuf heures, mais le \
gardien laisse toujours aux lecteurs le temps de finir leur page. On y trouve des romans, des cartes et des journaux du siècle dernier. \
El barco salió del puerto antes del amanecer. El capitán miraba las estrellas y los marineros dormían todavía. Nel giardino della \
scuola c'era un vecchio ciliegio, e in primavera i bambini studiavano alla sua ombra. O rio corre devagar até o mar, e as crianças \
aprendem a nadar antes de saber ler.""",
    """A committee of five members is to be chosen from seven women and six men. In how many ways can this be done if at least three of \
the members must be women? There are three cases. With three women and two men there are 35 x 15 = 525 ways. With four women and one man \
there are 35 x 6 = 210 ways. With five women there are 21 ways. Together this makes 525 + 210 + 21 = 756. Let f(x) = x^2 - 4x + 3. The \
zeros are x = 1 and x = 3, the vertex is at (2, -1), and the derivative is f'(x) = 2x - 4. The train leaves at 7:45 and arrives at \
10:20, so the journey takes 2 hours and 35 minutes; at an average of 96 kilometres per hour that is 248 kilometres.""",
    """# Installation

Install the package with `pip install parcel-tracker`, then create a file named `config.yaml`:

```yaml
server:
  host: 127.0.0.1
  port: 8080
retries: 3
notify:
  - email
  - sms
```

Start the service with `parcel-tracker run --config config.yaml`. It writes its log to standard error.

## Troubleshooting

| Message | Meaning | Remedy |
|---|---|---|
| `address in use` | another program listens on the port | change `port` |
| `permission denied` | the folder is not writable | run `chmod u+w data` |

<div class="note"><p>Version 2.0 needs <strong>Python 3.9</strong> or later.</p></div>""",
    """In 1869 a Russian chemist wrote the names and weights of the known elements on cards and laid them out like a game of patience. He \
noticed that properties came back at regular intervals, and he left gaps where an element seemed to be missing. Within twenty years \
three of the gaps were filled by gallium, scandium and germanium, with almost exactly the weights and densities that he had predicted. \
The table has been rearranged many times since then. Today its order follows the number of protons in the nucleus, not the weight, and \
the columns reflect how the outermost electrons are arranged.""",
    """The committee met on Tuesday to discuss the new bridge. According to the engineers, the old one can carry buses for another three \
years, but not lorries. Several residents complained about the noise that the works would bring; others asked for a lane for bicycles. \
The mayor promised that a decision would be made before the summer. "We cannot build a bridge for everyone," she said, "but we can build \
one that everyone can cross." The costs are estimated at 14.5 million euros, of which the state will pay sixty per cent. Shares of the \
company that is expected to win the contract rose by 3.2% on Wednesday, while the local football club lost again, 0-2, at home.""",
    """Q: Which planet is the largest in the solar system?
A: Jupiter.
Q: Who wrote "Pride and Prejudice"?
A: Jane Austen.
Q: What is the chemical symbol of gold?
A: Au.
Q: How many sides does a hexagon have?
A: Six.
Q: What is the capital of Australia?
A: Canberra.

Synonyms: happy - glad, cheerful, content; big - large, huge, great; fast - quick, rapid, swift.
Translate into French: "Good morning, how are you?" -> "Bonjour, comment allez-vous ?"
Shopping list: milk, eggs, two onions, olive oil, toothpaste, batteries (AA), paper towels.""",
)
