"""All methods of a bundle side by side, by kind of question: ``python -m benchmarks.methods BUNDLE QUESTIONS``.

Every method runs in a process of its own with a bundle of only the models that it needs, so that plain decoding is not slowed
by a draft that it does not ask, and takes its turn with each question.
"""
