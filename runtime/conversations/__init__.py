"""Chats that keep their cache rows from turn to turn, and several of them on one engine."""
