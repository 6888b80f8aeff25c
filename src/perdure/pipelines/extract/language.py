"""Which language a text is in: by its script, and by the commonest small words where several share one."""

from __future__ import annotations

import re
from collections import Counter

UNKNOWN = "und"

_WORD = re.compile(r"[^\W\d_]+")
_SAMPLE_CHARS = 100_000
_WORDS_MIN = 20  # below this, small words say nothing
_SHARE_MIN = 0.08  # of all words; running text of a known language has 0.2 and more
_LEAD_MIN = 1.15  # over the second best
_SCRIPT_SHARE_MIN = 0.2  # Japanese and Chinese manuals quote much Latin

_SCRIPTS = {
    "kana": re.compile("[\u3040-\u30ff]"),
    "ko": re.compile("[\uac00-\ud7af]"),
    "zh": re.compile("[\u4e00-\u9fff]"),
    "cyrillic": re.compile("[\u0400-\u04ff]"),
    "el": re.compile("[\u0370-\u03ff]"),
    "ar": re.compile("[\u0600-\u06ff]"),
    "he": re.compile("[\u0590-\u05ff]"),
    "hi": re.compile("[\u0900-\u097f]"),
    "th": re.compile("[\u0e00-\u0e7f]"),
}

_CYRILLIC = {
    "ru": "и в не на что с по для как это из или при если то вы его но все она они был быть только можно также",
    "uk": "і в не на що з до для як це та або при якщо ви його але всі вона вони був бути тільки можна також у є",
    "bg": "и в не на че с за по като това от или при ако то ви му но са се да който има може само също е",
}

_LATIN = {
    "en": "the of and to in is that for it as with be on by this are or from at which not have was you an if can but",
    "de": "der die und das in den zu ist mit von sie für auf ein eine nicht dem des werden wird im auch sich es oder",
    "fr": "le la les de des et un une du est en que pour dans vous par sur au qui pas ce plus avec sont ou cette il",
    "es": "el la los las de que y en un una es por para con se no del al su como más si este puede o esta lo son",
    "it": "il la di e che un una per in del con si è non i le da della sono nel al come più dei questo può gli o",
    "pt": "o a os as de que e em um uma do da para com não é se por no na mais como ao dos das são você ou este pode",
    "nl": "de het een van en in is dat op te met voor zijn niet u aan worden wordt er ook of door als die kan om bij",
    "sv": "och att det i en som är av för på med den till om inte har ett du kan eller de från så vid var när detta",
    "da": "og at det i en er af for på med den til som ikke de der et kan du eller fra har hvis skal dette når om vil",
    "nb": "og å det i en er av for på med den til som ikke de et kan du eller fra har hvis skal dette når om vil deg",
    "fi": "ja on ei se että oli hän mutta ovat kun tai joka niin kuin myös voi jos sen ole tämä ne mitä sekä vain",
    "pl": "w i na z do nie się jest to że o jak po za od dla przez oraz lub może jego są być tym ale tego które",
    "cs": "a v na se je že s z do to o pro jako po ve při nebo by jsou které může si od aby také pokud k být není",
    "sk": "a v na sa je že s z do to o pre ako po vo pri alebo by sú ktoré môže si od aby tiež ak k byť nie je",
    "hu": "a az és hogy nem is egy van ez meg de volt el csak már ha vagy mint kell lehet azt még ki fel amely",
    "ro": "de și în a la cu pe este pentru un o din nu că se care mai sau sunt să ce dacă prin ca fi au al va",
    "ca": "el la els les de que i en un una és per amb no del al es com més si aquest pot o ha són dels als aquesta",
    "id": "yang dan di untuk dengan dari ini pada anda adalah dalam tidak akan atau ke dapat itu sebuah oleh bisa jika",
    "tr": "ve bir bu için ile da de olarak çok daha olan gibi ne var en veya kadar ama sonra değil her mi ise",
    "vi": "và của là các có trong cho được không một với này để những khi bạn từ cần sẽ hoặc đã thì cài trên máy",
}  # fmt: skip

_WORDS = {language: frozenset(words.split()) for language, words in _LATIN.items()}
_CYRILLIC_WORDS = {language: frozenset(words.split()) for language, words in _CYRILLIC.items()}


def language_of(text: str) -> str:
    """A two-letter code (ISO 639-1), or "und" when the text is short, mixed or in a language not known here."""
    sample = text[:_SAMPLE_CHARS]
    words = Counter(_WORD.findall(sample.lower()))
    letters = sum(len(word) * count for word, count in words.items())
    if not letters:
        return UNKNOWN
    counts = {script: len(pattern.findall(sample)) for script, pattern in _SCRIPTS.items()}
    if counts["kana"] > 0.1 * letters:
        return "ja"
    script, most = max(counts.items(), key=lambda one: one[1])
    if most > _SCRIPT_SHARE_MIN * letters:
        return _by_words(words, _CYRILLIC_WORDS) if script == "cyrillic" else script
    return _by_words(words, _WORDS)


def _by_words(words: Counter[str], known: dict[str, frozenset[str]]) -> str:
    total = words.total()
    if total < _WORDS_MIN:
        return UNKNOWN
    shares = sorted(
        ((sum(words[word] for word in small) / total, language) for language, small in known.items()),
        reverse=True,
    )
    (best, language), (second, _) = shares[0], shares[1]
    return language if best >= _SHARE_MIN and best >= _LEAD_MIN * second else UNKNOWN
