"""What the target is asked about when nobody gives prompts: written for this project, and derived from no benchmark.

``OPENERS`` begin a user's turn that the target itself finishes. ``TASKS`` are whole turns by category, with places for a topic, a
language and so on. ``ON_ANSWERS`` are turns about something that the target wrote before, ``FOLLOW_UPS`` go on in its conversation.
``PLAIN`` begin texts of a target that is no chat model.
"""

from __future__ import annotations

TOPICS = (
    "bees and pollination", "how bread rises", "the tides", "a small bakery", "learning to swim as an adult", "old bridges", "volcanoes",
    "keeping a diary", "night trains", "the history of paper", "growing tomatoes on a balcony", "city bicycles", "lighthouses", "glaciers",
    "how vaccines work", "the printing press", "owls", "home insulation", "tea ceremonies", "the water cycle", "choosing a first guitar",
    "a lost umbrella", "desert plants", "public libraries", "chess for beginners", "the invention of the telephone", "salt", "earthquakes",
    "a family recipe", "rivers and trade", "how batteries store energy", "clouds", "working from home", "mountain rescue", "the Silk Road",
    "sleep and memory", "a community garden", "coral reefs", "the moon", "repairing clothes", "street markets", "wind turbines", "fossils",
    "a shy robot", "the stock of a small shop", "time zones", "learning a language", "honest advertising", "the human heart", "maps",
    "a long hike", "soil", "recycling glass", "a village festival", "the metric system", "penguins", "first aid at home", "cheese making",
    "the Roman roads", "buying a used car", "stage fright", "solar eclipses", "a detective with a bad memory", "folk songs", "budgeting",
    "ancient Egypt", "how airplanes fly", "wetlands", "teamwork", "the immune system", "wooden boats", "a school play", "inflation", "ants",
    "stretching after sport", "the ozone layer", "photography in low light", "moving house", "the history of zero", "rain forests",
    "customer service", "pottery", "the speed of light", "a talking cat", "food safety", "migration of birds", "museum visits", "genes",
    "electric cars", "a broken clock", "good questions in interviews", "the Renaissance", "beekeeping in cities", "snow", "public speaking",
    "tax forms", "theatre masks", "the nervous system", "how search engines work", "a message in a bottle", "spices", "digital privacy",
    "the planet Mars", "neighbours", "deep sea fish", "making friends in a new place", "the steam engine", "a picnic in the rain", "bamboo",
)  # fmt: skip
OPENERS = (
    "What is", "What are the", "How do I", "How does", "How can I", "Why do", "Why is", "Can you explain", "Can you help me", "Could you",
    "Write a", "Write a short", "Give me", "List", "Explain", "Describe", "Compare", "Tell me about", "I am", "I have a", "I want to",
    "I need", "My", "Is it", "Are there", "Do you know", "Should I", "When should", "Where can", "Which", "Who was", "Suppose", "Imagine",
    "Create a", "Make a", "Design a", "Summarize", "Rewrite", "Translate", "Calculate", "Solve", "Find", "Plan a", "Suggest", "Help me",
    "Please", "In your opinion", "What would happen if", "What is the difference between", "Write a function that", "Write a program",
    "Write an email", "Write a story about", "Write a poem about", "Here is", "Hi", "Hello", "The following", "Let's", "If", "Generate",
    "Name", "Define", "Identify", "Pretend", "You are", "Classify", "Complete", "Convert", "Fix", "",
)  # fmt: skip
LANGUAGES = ("French", "German", "Spanish", "Italian", "Portuguese", "Dutch", "Swedish", "Polish")
CODE_LANGUAGES = ("Python", "JavaScript", "C", "Java", "SQL", "Bash", "Go", "Rust")
CODE_JOBS = (
    "reads a CSV file and prints the sum of a column", "checks whether a word is a palindrome", "sorts a list of people by age",
    "counts the words in a text file", "computes the greatest common divisor", "renames all files in a folder by date",
    "merges two sorted lists", "validates an email address", "implements a stack with push and pop", "finds duplicates in a list",
    "converts Roman numerals to numbers", "draws a multiplication table", "downloads a web page and counts its links",
    "simulates the throw of two dice", "removes comments from source code", "computes a moving average", "prints a calendar month",
    "parses a configuration file with key=value lines", "reverses a linked list", "finds the shortest path in a grid",
    "groups orders by customer", "caches the results of a slow function", "prints the first prime numbers", "rotates a matrix",
)  # fmt: skip
NAMES = ("Anna", "Ravi", "Lucía", "Tom", "Mei", "Omar", "Ingrid", "Kofi", "Sara", "Ivan")
THINGS = ("apples", "tickets", "marbles", "books", "bottles", "stamps", "boxes", "coins")

TASKS: dict[str, tuple[str, ...]] = {
    "writing": (
        "Write a short story about {topic}.", "Write an article about {topic} for a local newspaper.", "Write a poem about {topic}.",
        "Write a letter to a friend about {topic}.", "Draft an email that invites colleagues to a talk on {topic}.",
        "Write the opening scene of a novel about {topic}.", "Write a product description connected with {topic}.",
        "Write a dialogue between two people who disagree about {topic}.", "Write a review of a documentary on {topic}.",
    ),
    "knowledge": (
        "Explain {topic} to a ten year old.", "What should everybody know about {topic}?", "What are common mistakes with {topic}?",
        "Give five facts about {topic}.", "How has {topic} changed over the last hundred years?", "Why does {topic} matter?",
        "What are the advantages and disadvantages of {topic}?", "Give me step by step instructions connected with {topic}.",
        "Answer in one paragraph: what is special about {topic}?", "Make a table with three aspects of {topic} and what they mean.",
    ),
    "roles": (
        "You are a patient teacher. Introduce {topic} to your class.", "Pretend to be an explorer and report on {topic}.",
        "As a chef, what would you say about {topic}?", "You are a critic. Give your honest opinion on {topic}.",
        "Speak as a historian of the year 2300 about {topic}.", "Play a sales clerk who is asked about {topic}.",
    ),
    "code": (
        "Write a {code} program that {job}.", "Write a function in {code} that {job}, with a short explanation.",
        "Show me how one {job} in {code}.", "Explain line by line a {code} example that {job}.", "Write tests for {code} code that {job}.",
    ),
    "maths": (
        "{name} has {a} {things} and gives {b} of them away. How many are left? Show your steps.",
        "A train travels {a} km in {b} hours. How fast is it on average?", "What is {a} times {b}? Explain how you calculate it.",
        "{name} saves {b} euros a week. After how many weeks are there {a} euros?", "Solve for x: {b}x + {a} = {c}.",
        "A rectangle is {a} cm long and {b} cm wide. What are its area and its perimeter?",
        "{name} buys {b} {things} at {a} cents each and pays with 50 euros. What is the change?", "What is {b} percent of {a}?",
    ),
    "translation": (
        "Translate to {language}: The book about {topic} is on the table, and we will talk about it tomorrow.",
        "How do you say \"I would like to know more about {topic}\" in {language}?",
        "Translate the following sentence to {language}, then back to English: My neighbour knows everything about {topic}.",
    ),
    "extraction": (
        "List the nouns in this sentence: {name} bought {a} {things} because of {topic}.",
        "Turn this into JSON: name {name}, age {b}, interest {topic}, number of {things} {a}.",
        "Which number is mentioned here? {name} talked about {topic} for {b} minutes.",
    ),
}  # fmt: skip
ON_ANSWERS: dict[str, tuple[str, ...]] = {
    "summary": (
        "Summarize the following text in two sentences.\n\n{answer}", "Write a summary of this article:\n\n{answer}",
        "{answer}\n\nWhat are the main points of the text above?", "Shorten this text to half of its length:\n\n{answer}",
    ),
    "passages": (
        "Use the passages to answer the question.\n\n{passages}\n\nQuestion: What do the passages say about {topic}?",
        "{passages}\n\nWhich of the passages above speaks about {topic}? Quote the sentence.",
        "Answer from these documents only.\n\n{passages}\n\nQ: What is the most important thing about {topic}?\nA:",
    ),
    "translation": ("Translate the following text to {language}.\n\n{answer}", "Translate into {language}:\n{answer}"),
    "rewriting": (
        "Correct the spelling and grammar of this text:\n\n{answer}", "Rewrite this text in a more formal style:\n\n{answer}",
        "Rewrite the text as a list of bullet points.\n\n{answer}", "Continue this text:\n\n{answer}",
    ),
}  # fmt: skip
FOLLOW_UPS = (
    "Can you give an example?", "Make it shorter.", "Why is that?", "Explain that in simpler words.", "And what about {topic}?",
    "Repeat that as a numbered list.", "Are you sure?", "Write it again in {language}.", "What would an expert add?", "Go on.",
    "Now write the opposite view.", "Turn your answer into three questions for a quiz.",
)  # fmt: skip
PLAIN = (
    "The history of {topic} began", "{topic}: an introduction\n\n", "In recent years, {topic}", "Once upon a time, {name}",
    "Dear {name},\n\nthank you for your letter about {topic}.", "# {code} program that {job}\n", "Question: What is known about {topic}?\n"
    "Answer:", "Chapter 1\n\n{name} had always been interested in {topic}.", "Abstract. We study {topic}", "Recipe of the day\n\n",
    "{name}: What do you think of {topic}?\n", "The following table lists {a} {things}", "News, {a} May: {topic}",
    "How to learn about {topic}",
)  # fmt: skip
